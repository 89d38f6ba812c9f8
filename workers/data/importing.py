"""Imports images from any source into one canonical blob, with a report of everything that was noticed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from service.datasets.findings import FindingCode
from service.errors import DatasetInvalid
from workers.data.blob import BlobWriter, Row
from workers.data.doctor import Doctor
from workers.data.findings import Findings
from workers.data.images import CONVERSIONS, ImageError, decode
from workers.data.limits import Guard
from workers.data.opening import DEFAULT_OPTIONS, SourceOptions, open_source
from workers.data.source import SourceError

MAX_SKIPPED = 0.05
"""Share of rows that may be left out unless a user says otherwise: above it something is wrong with the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPolicy:
    """When a dataset is rejected.

    Attributes:
        max_skipped: share of rows that may be left out; 0 rejects at the first that cannot be used.
        reject_on: kinds of findings of which none may be there.
    """

    max_skipped: float = MAX_SKIPPED
    reject_on: tuple[FindingCode, ...] = ()


DEFAULT_POLICY = ImportPolicy()


@dataclass(frozen=True, slots=True)
class ImportedDataset:
    """The result of an import.

    Attributes:
        digest: SHA-256 (hex) of the blob: the dataset's identity.
        classes: class names in the order of the labels.
        counts: ``images``, ``labelled``, ``classes {name: n}`` and ``splits {name: n}``; rows without an official
            split are not in ``splits``.
        image: ``channels`` (1 when every image is grey, else 3), ``min_side``, ``max_side`` in pixels.
        report: findings, container and layout, how many images of each file format and pixel mode there are, and
            what is done to those modes.
    """

    digest: str
    size_bytes: int
    classes: tuple[str, ...]
    counts: dict[str, Any]
    image: dict[str, int]
    report: dict[str, Any]


def resolve_import_path(root: Path, relative: str) -> Path:
    """The path that a user named, which must lie below the configured root even when links are followed.

    Raises:
        DatasetInvalid: outside the root, or missing.
    """
    base = root.resolve()
    path = (base / relative).resolve()
    if not path.is_relative_to(base):
        raise DatasetInvalid(f"path {relative!r} leaves the import root; name a path below it")
    if not path.exists():
        raise DatasetInvalid(f"path {relative!r} does not exist below the import root")
    return path


def import_dataset(
    path: Path,
    blob: Path,
    *,
    options: SourceOptions = DEFAULT_OPTIONS,
    policy: ImportPolicy = DEFAULT_POLICY,
    guard: Guard | None = None,
    on_row: Callable[[int, int], None] = lambda done, total: None,
) -> ImportedDataset:
    """Read everything below ``path``, decode each image once, and write the canonical blob.

    Args:
        path: a folder or file.
        blob: where to write; an existing file is replaced. Temporary files lie beside it.
        options: how to read ``path``.
        policy: when to reject the dataset.
        guard: bounds what the import takes.
        on_row: called with (rows done, rows in all) after each row; may raise to stop.

    Raises:
        DatasetInvalid: nothing to import, or rejected by the policy; the report is in ``extra``.
    """
    guard = guard or Guard()
    findings = Findings()
    tally = _Tally()
    try:
        opened = open_source(path, blob.parent, options, findings, guard)
        source = opened.source
        with BlobWriter(blob, source.classes) as writer:
            for done, row in enumerate(source.rows(findings), start=1):
                if row is not None and tally.accept(row, findings):
                    writer.append(row)
                guard.check()
                on_row(done, source.count)
    except SourceError as error:
        raise DatasetInvalid(str(error), extra={"report": findings.to_json()}) from error
    tally.doctor.judge(source.classes, findings)
    report = {
        **findings.to_json(),
        "container": opened.container,
        "layout": source.layout,
        "formats": _sorted(tally.formats),
        "modes": _sorted(tally.modes),
        "conversions": {mode: CONVERSIONS[mode] for mode in sorted(tally.modes) if mode in CONVERSIONS},
    }
    _refuse_hopeless(tally.images, findings, policy, report)
    with blob.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ImportedDataset(
        digest=digest,
        size_bytes=blob.stat().st_size,
        classes=source.classes,
        counts=tally.counts(source.classes),
        image={"channels": 3 if tally.colour else 1, "min_side": tally.min_side, "max_side": tally.max_side},
        report=report,
    )


@dataclass(slots=True)
class _Tally:
    """Counts over the accepted rows."""

    images: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    colour: bool = False
    min_side: int = 0
    max_side: int = 0
    doctor: Doctor = field(default_factory=Doctor)

    def accept(self, row: Row, findings: Findings) -> bool:
        """Decode and count a row; False when it cannot be used."""
        try:
            decoded = decode(row.image)
        except ImageError as error:
            findings.add(FindingCode.UNREADABLE_IMAGE, row.where, str(error))
            return False
        sides = decoded.image.size
        self.min_side = min(sides) if self.images == 0 else min(self.min_side, *sides)
        self.max_side = max(self.max_side, *sides)
        self.images += 1
        self.colour = self.colour or not decoded.is_grey
        self.formats[decoded.format] += 1
        self.modes[decoded.mode] += 1
        if row.label is not None:
            self.labels[row.label] += 1
        if row.split is not None:
            self.splits[row.split.value] += 1
        if decoded.animated:
            findings.add(FindingCode.ANIMATED, row.where, "only its first frame is used")
        self.doctor.see(row, decoded)
        return True

    def counts(self, classes: tuple[str, ...]) -> dict[str, Any]:
        return {
            "images": self.images,
            "labelled": self.labels.total(),
            "classes": {name: self.labels[i] for i, name in enumerate(classes)},
            "splits": _sorted(self.splits),
        }


def _refuse_hopeless(accepted: int, findings: Findings, policy: ImportPolicy, report: dict[str, Any]) -> None:
    def refuse(detail: str) -> NoReturn:
        raise DatasetInvalid(detail, extra={"report": report})

    if accepted == 0:
        refuse("no row of the dataset can be used; the report names the reasons")
    rejected = findings.rejected
    if rejected / (accepted + rejected) > policy.max_skipped:
        refuse(
            f"{rejected} of {accepted + rejected} rows cannot be used, which is more than {policy.max_skipped:.0%} "
            "(source.max_skipped); the report names them with the reasons. Repair or remove them and import again"
        )
    for code in findings.present(policy.reject_on):
        refuse(
            f"{findings.counts[code]} findings of kind {code}, of which source.reject_on allows none, such as "
            f"{findings.first(code)}; the report names them. Repair or remove them and import again"
        )


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
