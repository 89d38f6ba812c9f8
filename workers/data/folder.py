"""Reads a tree of images: class folders or flat, with or without folders for the official splits.

Understood layouts, by the first one that fits, each of them in any number of folders around it::

    train|val|test / CLASS / ... / IMAGE        splits and labels
    train|val|test / IMAGE                      splits, no labels
    CLASS / ... / IMAGE                         labels
    IMAGE                                       neither

Names are sorted by code point, so the order does not depend on the file system or archive: equal files give equal
datasets. One class list holds for all splits: a class that only some of them have keeps its number in each.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from service.datasets.findings import FindingCode
from workers.data.blob import Row, SplitName
from workers.data.findings import Findings
from workers.data.source import SourceError, split_named
from workers.data.tree import Member, MemberError, Parts, Tree, children

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
"""What counts as an image by its name, in lower case; everything else is listed as ignored."""


@dataclass(frozen=True, slots=True)
class _File:
    member: Member
    class_name: str | None
    split: SplitName | None


class FolderSource:
    """A tree of images; the files are read one at a time.

    Args:
        tree: the folder or archive.
        use_labels: False ignores class folders.
        findings: where ignored files and empty classes are noted.

    Raises:
        SourceError: no image in it, or two class folders whose names are the same text in another spelling.
    """

    layout = "folder"

    def __init__(self, tree: Tree, *, use_labels: bool, findings: Findings) -> None:
        self._tree = tree
        self._findings = findings
        self._files = sorted(
            self._sorted_into_classes(), key=lambda file: (file.split or "", file.class_name or "", file.member.where)
        )
        if not self._files:
            raise SourceError(f"no image in {tree.name!r}: expected files with one of the suffixes {suffixes()}")
        self._classes = tuple(sorted({f.class_name for f in self._files if f.class_name is not None}))
        if not use_labels:
            self._classes = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Folder names in NFC, sorted by code point; empty for flat folders."""
        return self._classes

    @property
    def count(self) -> int:
        """Number of image files."""
        return len(self._files)

    def rows(self, findings: Findings) -> Iterator[Row | None]:
        """Read the files, by split, class and name."""
        numbers = {name: i for i, name in enumerate(self._classes)}
        for file in self._files:
            label = numbers.get(file.class_name) if file.class_name is not None else None
            yield read_row(self._tree, file.member, label, file.split, findings)

    def _sorted_into_classes(self) -> Iterator[_File]:
        images = list(images_of(self._tree, self._findings))
        base = wrapping(images)
        tops = {image.parts[len(base)] for image in images if len(image.parts) > len(base) + 1}
        if not tops or not all(map(split_named, tops)):
            yield from self._split_files(images, base, None)
            return
        refuse_clashes(sorted(tops), lambda name: str(split_named(name)))
        groups: dict[str, list[Member]] = defaultdict(list)
        for image in images:
            if len(image.parts) > len(base) + 1:
                groups[image.parts[len(base)]].append(image)
            else:
                self._ignore(image, "beside the folders of the splits")
        for top, group in groups.items():
            inner = (*base, top)
            # Some tools pack `train/` as `train/train/`.
            while all(len(m.parts) > len(inner) + 1 and m.parts[len(inner)] == top for m in group):
                inner = (*inner, top)
            yield from self._split_files(group, inner, split_named(top))

    def _split_files(self, images: Sequence[Member], base: Parts, split: SplitName | None) -> Iterator[_File]:
        """Images of one split: in class folders if there are any, else flat."""
        depth = len(base)
        classes = {image.parts[depth] for image in images if len(image.parts) > depth + 1}
        if not classes:
            yield from (_File(image, None, split) for image in images)
            return
        refuse_clashes(sorted(classes), class_of)
        self._note_empty_folders(base, classes)
        for image in images:
            if len(image.parts) > depth + 1:
                yield _File(image, class_of(image.parts[depth]), split)
            else:
                self._ignore(image, "beside class folders, so it has no class")

    def _note_empty_folders(self, base: Parts, classes: set[str]) -> None:
        # A folder is in the list of an archive when it holds nothing, else perhaps only in the paths of its files.
        holding = (member.parts[:-1] for member in self._tree.members)
        found = {parts[0] for names in (self._tree.folders, holding) for parts in children(names, base)}
        for name in sorted(found - classes):
            self._findings.add(FindingCode.EMPTY_CLASS, "/".join((*base, name)), "no image in this folder; not a class")

    def _ignore(self, image: Member, reason: str) -> None:
        self._findings.add(FindingCode.IGNORED, image.where, reason)


def suffixes() -> str:
    """The known suffixes of images, for messages."""
    return ", ".join(sorted(IMAGE_SUFFIXES))


def images_of(tree: Tree, findings: Findings) -> Iterator[Member]:
    """The images of a tree by their suffixes, in the order of their paths; all other files are noted as ignored."""
    for member in sorted(tree.members, key=lambda member: member.parts):
        if member.suffix in IMAGE_SUFFIXES:
            yield member
        else:
            findings.add(FindingCode.IGNORED, member.where, "not an image by its suffix")


def wrapping(members: Sequence[Member]) -> Parts:
    """Folders around everything: archives often hold one folder that holds the rest. A split is never one of them."""
    base: Parts = ()
    while members:
        depth = len(base)
        first = members[0].parts
        if len(first) < depth + 3 or split_named(first[depth]):
            break
        if not all(len(m.parts) >= depth + 3 and m.parts[depth] == first[depth] for m in members):
            break
        base = (*base, first[depth])
    return base


def read_row(tree: Tree, member: Member, label: int | None, split: SplitName | None, findings: Findings) -> Row | None:
    """Read one image; None when it cannot be read, which ``findings`` explains."""
    try:
        data = tree.read(member)
    except MemberError as error:
        findings.add(FindingCode.UNREADABLE_IMAGE, member.where, str(error))
        return None
    return Row(where=member.where, image=data, label=label, split=split)


def class_of(name: str) -> str:
    """The class that a folder's name means."""
    # File systems store composed or decomposed umlauts as they come; a class has one spelling.
    return unicodedata.normalize("NFC", name)


def refuse_clashes(names: Sequence[str], meaning: Callable[[str], str]) -> None:
    """See that no two names mean the same.

    Raises:
        SourceError: two do.
    """
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(meaning(name), name)
        if first is not name:
            # Escaped: two spellings of one name look alike.
            raise SourceError(f"folders {first!a} and {name!a} both mean '{meaning(name)}'; rename one")
