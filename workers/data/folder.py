"""Reads a folder of images: class folders or flat, with or without folders for the official splits.

Understood layouts, by the first one that fits::

    train|val|test / CLASS / ... / IMAGE        splits and labels
    train|val|test / IMAGE                      splits, no labels
    CLASS / ... / IMAGE                         labels
    IMAGE                                       neither

Names are sorted by code point, so the order does not depend on the file system. One class list holds for all splits:
a class that only some of them have keeps its number in each. Links are not followed.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.data.blob import Row, SplitName
from workers.data.findings import FindingCode, Findings, printable
from workers.data.source import SPLIT_ALIASES, SourceError

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)
"""What counts as an image by its name, in lower case; everything else is listed as ignored."""

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Larger files are findings: they are read into memory whole."""

_SYSTEM_NAMES = frozenset({"__macosx", "thumbs.db", "desktop.ini", "lost+found", "@eadir", "$recycle.bin"})


@dataclass(frozen=True, slots=True)
class _Listing:
    folders: list[Path]
    images: list[Path]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    where: str
    class_name: str | None
    split: SplitName | None


class FolderSource:
    """An image folder; the file list is read once, the files one at a time.

    Args:
        root: the folder.
        use_labels: False ignores class folders.
        findings: where ignored files and empty classes are noted.

    Raises:
        SourceError: no image in it, or two class folders whose names are the same text in another spelling.
    """

    def __init__(self, root: Path, *, use_labels: bool, findings: Findings) -> None:
        self._files = sorted(
            _walk(root, findings), key=lambda file: (file.split or "", file.class_name or "", file.where)
        )
        if not self._files:
            raise SourceError(f"no image in {root.name!r}: expected files with one of the suffixes {_suffixes()}")
        self._classes = tuple(sorted({f.class_name for f in self._files if f.class_name is not None}))
        if not use_labels:
            self._classes = ()
        elif self._classes:
            self._note_class_gaps(findings)

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
            try:
                if file.path.stat().st_size > MAX_FILE_BYTES:
                    raise OSError(f"larger than {MAX_FILE_BYTES} bytes")
                data = file.path.read_bytes()
            except OSError as error:
                findings.add(FindingCode.UNREADABLE_IMAGE, file.where, f"cannot be read: {error.strerror or error}")
                yield None
                continue
            label = numbers.get(file.class_name) if file.class_name is not None else None
            yield Row(where=file.where, image=data, label=label, split=file.split)

    def _note_class_gaps(self, findings: Findings) -> None:
        if not any(file.split is SplitName.TRAIN for file in self._files):
            return
        trained = {file.class_name for file in self._files if file.split is SplitName.TRAIN}
        for name in self._classes:
            if name not in trained:
                reason = "the train split has no image of it, so no network can learn it"
                findings.add(FindingCode.CLASS_WITHOUT_TRAINING_IMAGES, name, reason)


def _suffixes() -> str:
    return ", ".join(sorted(IMAGE_SUFFIXES))


def _walk(root: Path, findings: Findings) -> Iterator[_File]:
    listing = _listing(root, root, findings)
    split_folders = [folder for folder in listing.folders if folder.name.casefold() in SPLIT_ALIASES]
    if not split_folders or len(split_folders) < len(listing.folders):
        yield from _split_files(root, listing, None, findings)
        return
    _refuse_clashes(split_folders, _split_of)
    _ignore(listing.images, root, "beside the folders of the splits", findings)
    for folder in split_folders:
        yield from _split_files(root, _listing(root, folder, findings), _split_of(folder), findings)


def _split_files(root: Path, listing: _Listing, split: SplitName | None, findings: Findings) -> Iterator[_File]:
    """Images of one split: in class folders if there are any, else flat."""
    if not listing.folders:
        yield from (_File(path, _where(root, path), None, split) for path in listing.images)
        return
    _refuse_clashes(listing.folders, _class_of)
    _ignore(listing.images, root, "beside class folders, so it has no class", findings)
    for folder in listing.folders:
        found = list(_images_below(root, folder, findings))
        if not found:
            findings.add(FindingCode.EMPTY_CLASS, _where(root, folder), "no image in this folder; not a class")
        yield from (_File(path, _where(root, path), _class_of(folder), split) for path in found)


def _images_below(root: Path, folder: Path, findings: Findings) -> Iterator[Path]:
    listing = _listing(root, folder, findings)
    yield from listing.images
    for inner in listing.folders:
        yield from _images_below(root, inner, findings)


def _listing(root: Path, folder: Path, findings: Findings) -> _Listing:
    """Sub-folders and image files, sorted; everything else is noted as ignored."""
    listing = _Listing([], [])
    for entry in sorted(folder.iterdir(), key=lambda path: path.name):
        reason = _reason_to_ignore(entry)
        if reason:
            findings.add(FindingCode.IGNORED, _where(root, entry), reason)
        else:
            (listing.folders if entry.is_dir() else listing.images).append(entry)
    return listing


def _reason_to_ignore(entry: Path) -> str | None:
    if entry.name.startswith(".") or entry.name.casefold() in _SYSTEM_NAMES:
        return "hidden or system name"
    if entry.is_symlink():
        return "link; links are not followed"
    if entry.is_dir():
        return None
    if not entry.is_file():
        return "neither file nor folder"
    if entry.suffix.lower() not in IMAGE_SUFFIXES:
        return "not an image by its suffix"
    return None


def _ignore(paths: list[Path], root: Path, reason: str, findings: Findings) -> None:
    for path in paths:
        findings.add(FindingCode.IGNORED, _where(root, path), reason)


def _class_of(folder: Path) -> str:
    # File systems store composed or decomposed umlauts as they come; a class has one spelling.
    return unicodedata.normalize("NFC", printable(folder.name))


def _split_of(folder: Path) -> SplitName:
    return SPLIT_ALIASES[folder.name.casefold()]


def _refuse_clashes(folders: list[Path], meaning: Callable[[Path], str]) -> None:
    seen: dict[str, Path] = {}
    for folder in folders:
        first = seen.setdefault(meaning(folder), folder)
        if first is not folder:
            # Escaped: two spellings of one name look alike.
            names = f"{printable(first.name)!a} and {printable(folder.name)!a}"
            raise SourceError(f"folders {names} both mean '{meaning(folder)}'; rename one")


def _where(root: Path, path: Path) -> str:
    return printable(os.fspath(path.relative_to(root)))
