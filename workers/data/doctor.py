"""Looks at the accepted images of a dataset as a whole: balance, splits, and images that are there more than once.

Near duplicates are found by difference hashes: of a 17 x 16 grey thumbnail, one bit for each pixel that is clearly
brighter than its right neighbour (after N. Krawetz, "Kind of Like That", 2013, with a margin against noise). Two
hashes of 256 bits that differ in at most :data:`NEAR_BITS` have one of eight words of 32 bits in common, so only images
that share a word are compared.

Legend: N images.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.datasets.findings import FindingCode
from workers.data.blob import Row, SplitName
from workers.data.findings import Findings
from workers.data.images import DecodedImage

NEAR_BITS = 7
"""Of 256: copies saved again or scaled differ in fewer, other photographs in tens."""

MIN_DETAIL_BITS = 24
"""Plain areas have no bits set, so that images with fewer than this all look alike."""

FEW_IMAGES = 50
"""With fewer, an accuracy on a fifth of them moves in steps of a tenth."""

SMALL_CLASS = 5
"""A class with fewer images can be in training, validation and holdout with one or two each, or not at all."""

IMBALANCE_RATIO = 10
"""Between the largest and the smallest class: beyond it the accuracy says little of the small ones."""

_WIDTH, _HEIGHT = 17, 16
_MARGIN = 4  # grey levels: compression moves plain areas by less
_WORDS = 8
# Images that share a word with very many others are compared with so many of them only, which bounds the time.
_NEIGHBOURS = 32


@dataclass(slots=True)
class Doctor:
    """Collects what it needs of each image, 48 bytes and a name; judges at the end."""

    labels: list[int | None] = field(default_factory=list)
    splits: list[SplitName | None] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _digests: list[bytes] = field(default_factory=list)
    _hashes: list[bytes] = field(default_factory=list)

    def see(self, row: Row, image: DecodedImage) -> None:
        """Note an accepted image."""
        self.labels.append(row.label)
        self.splits.append(row.split)
        self.names.append(row.where)
        self._digests.append(hashlib.blake2b(row.image, digest_size=16).digest())
        self._hashes.append(difference_hash(image.image))

    def judge(self, classes: tuple[str, ...], findings: Findings) -> None:
        """Note everything that is wrong with the dataset as a whole."""
        total = len(self.names)
        if 0 < total < FEW_IMAGES:
            reason = f"{total} images in all: accuracies on a part of them say little"
            findings.add(FindingCode.FEW_IMAGES, "", reason)
        if classes:
            self._judge_classes(classes, findings)
        self._judge_splits(classes, findings)
        copies = self._judge_copies(classes, findings)
        self._judge_near_copies(copies, findings)

    def _judge_classes(self, classes: tuple[str, ...], findings: Findings) -> None:
        sizes = Counter(label for label in self.labels if label is not None)
        for number, name in enumerate(classes):
            if sizes[number] == 0:
                findings.add(FindingCode.EMPTY_CLASS, name, "no usable image of this class; it keeps its number")
            elif sizes[number] < SMALL_CLASS:
                findings.add(FindingCode.SMALL_CLASS, name, f"{sizes[number]} images; training keeps at least one")
        if len(sizes) == 1:
            reason = "all images are of one class, so there is nothing to tell apart; leave labels out, or add classes"
            findings.add(FindingCode.ONE_CLASS, classes[next(iter(sizes))], reason)
        elif sizes:
            (large, most), (small, least) = sizes.most_common()[0], sizes.most_common()[-1]
            if most > IMBALANCE_RATIO * least:
                reason = f"{least} images, {classes[large]} has {most}; the accuracy over all says little of this class"
                findings.add(FindingCode.IMBALANCE, classes[small], reason)
        for name, other in _alike(classes):
            reason = f"differs from {other!r} only in case or in the spelling of its characters; are they one class?"
            findings.add(FindingCode.NAME_CLASH, name, reason)

    def _judge_splits(self, classes: tuple[str, ...], findings: Findings) -> None:
        present = {split: set[int | None]() for split in SplitName}
        for label, split in zip(self.labels, self.splits, strict=True):
            # Images without a split are divided later, and trained on for the most part.
            present[split or SplitName.TRAIN].add(label)
        if not present[SplitName.TRAIN] or not any(present[split] for split in (SplitName.VAL, SplitName.TEST)):
            return
        for number, name in enumerate(classes):
            found = [split for split in SplitName if number in present[split]]
            if found and SplitName.TRAIN not in found:
                reason = "the train split has no image of it, so no network can learn it"
                findings.add(FindingCode.CLASS_WITHOUT_TRAINING_IMAGES, name, reason)
            for split in (SplitName.VAL, SplitName.TEST):
                if found and split not in found and present[split] - {None}:
                    reason = f"the {split} split has no image of it, so nothing is measured on it there"
                    findings.add(FindingCode.CLASS_MISSING_IN_SPLIT, name, reason)

    def _judge_copies(self, classes: tuple[str, ...], findings: Findings) -> set[int]:
        """Files of equal bytes. Returns the positions of all but the first of each."""
        first: dict[bytes, int] = {}
        copies = set()
        for position, digest in enumerate(self._digests):
            original = first.setdefault(digest, position)
            if original == position:
                continue
            copies.add(position)
            findings.add(FindingCode.DUPLICATE, self.names[position], f"the same file as {self.names[original]}")
            self._judge_leak(original, position, "the same file as", findings)
            if self.labels[original] != self.labels[position]:
                label = self.labels[original]
                named = "no class" if label is None else f"class {classes[label]}"
                reason = f"the same file as {self.names[original]}, which has {named}"
                findings.add(FindingCode.LABEL_CONFLICT, self.names[position], reason)
        return copies

    def _judge_near_copies(self, copies: set[int], findings: Findings) -> None:
        hashes = np.frombuffer(b"".join(self._hashes), dtype=np.uint8).reshape(-1, _WORDS * 4)
        seen = set(copies)
        for original, position in near_pairs(hashes):
            if position in seen or original in copies:
                continue
            seen.add(position)
            findings.add(FindingCode.NEAR_DUPLICATE, self.names[position], f"looks like {self.names[original]}")
            self._judge_leak(original, position, "looks like", findings)

    def _judge_leak(self, original: int, position: int, how: str, findings: Findings) -> None:
        one, other = self.splits[original], self.splits[position]
        if one != other:
            reason = f"in split {other or 'none'}, {how} {self.names[original]} in split {one or 'none'}"
            findings.add(FindingCode.LEAKAGE, self.names[position], reason)


def difference_hash(image: Image.Image) -> bytes:
    """32 bytes that similar images share for the most part; see the module."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    small = image.convert("L").resize((_WIDTH, _HEIGHT), Image.Resampling.BOX, reducing_gap=2.0)
    grey = np.asarray(small, dtype=np.int16)
    return np.packbits(grey[:, :-1] - grey[:, 1:] > _MARGIN).tobytes()


def near_pairs(hashes: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Positions of images that look alike, the lower one first, in the order of the higher one.

    Args:
        hashes: uint8 (N, 32) of :func:`difference_hash`.
    """
    detailed = np.flatnonzero(np.bitwise_count(hashes).sum(axis=1) >= MIN_DETAIL_BITS)
    words = np.ascontiguousarray(hashes[detailed]).view(np.uint32)
    found: set[tuple[int, int]] = set()
    for column in range(_WORDS):
        order = np.argsort(words[:, column], kind="stable")
        values = words[order, column]
        for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            same = np.flatnonzero((values[step:] == values[:-step]) & (values[step:] != 0))
            if not len(same):
                break
            one, other = order[same], order[same + step]
            distance = np.bitwise_count(words[one] ^ words[other]).sum(axis=1)
            near = distance <= NEAR_BITS
            found.update(zip(detailed[one[near]].tolist(), detailed[other[near]].tolist(), strict=True))
    yield from sorted(((min(pair), max(pair)) for pair in found), key=lambda pair: (pair[1], pair[0]))


def _alike(classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for name in classes:
        folded = unicodedata.normalize("NFKC", name).casefold().strip()
        other = seen.setdefault(folded, name)
        if other is not name:
            yield name, other
