"""Imports a folder or a Parquet file into one canonical blob, with a report of everything that was noticed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from service.errors import DatasetInvalid
from workers.data.blob import BlobWriter, Row
from workers.data.findings import FindingCode, Findings
from workers.data.folder import FolderSource
from workers.data.images import ImageError, decode
from workers.data.parquet import ParquetSource
from workers.data.source import Source, SourceError

MAX_REJECTED_SHARE = 0.05
"""Above this share of rows that had to be left out, something is wrong with the dataset as a whole."""

_PARQUET_MAGIC = b"PAR1"


class SourceFormat(StrEnum):
    """What a path holds."""

    AUTO = "auto"
    FOLDER = "folder"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class ImportedDataset:
    """The result of an import.

    Attributes:
        digest: SHA-256 (hex) of the blob: the dataset's identity.
        classes: class names in the order of the labels.
        counts: ``images``, ``labelled``, ``classes {name: n}`` and ``splits {name: n}``; rows without an official
            split are not in ``splits``.
        image: ``channels`` (1 when every image is grey, else 3), ``min_side``, ``max_side`` in pixels.
        report: findings, and how many images of each file format and pixel mode there are.
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
    source_format: SourceFormat = SourceFormat.AUTO,
    use_labels: bool = True,
    on_row: Callable[[int, int], None] = lambda done, total: None,
) -> ImportedDataset:
    """Read everything below ``path``, decode each image once, and write the canonical blob.

    Args:
        path: a folder or a Parquet file.
        blob: where to write; an existing file is replaced.
        source_format: what ``path`` holds; by default found out.
        use_labels: False leaves labels out.
        on_row: called with (rows done, rows in all) after each row; may raise to stop.

    Raises:
        DatasetInvalid: nothing to import, or more than :data:`MAX_REJECTED_SHARE` of the rows had to be left out; the
            report is in ``extra``.
    """
    findings = Findings()
    tally = _Tally()
    try:
        source = _open(path, source_format, use_labels, findings)
        with BlobWriter(blob, source.classes) as writer:
            for done, row in enumerate(source.rows(findings), start=1):
                if row is not None and tally.accept(row, findings):
                    writer.append(row)
                on_row(done, source.count)
    except SourceError as error:
        raise DatasetInvalid(str(error), extra={"report": findings.to_json()}) from error
    for name, images in tally.counts(source.classes)["classes"].items():
        if images == 0:
            findings.add(FindingCode.EMPTY_CLASS, name, "no usable image of this class; it keeps its number")
    report = {**findings.to_json(), "formats": _sorted(tally.formats), "modes": _sorted(tally.modes)}
    _refuse_hopeless(tally.images, findings.rejected, report)
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
        return True

    def counts(self, classes: tuple[str, ...]) -> dict[str, Any]:
        return {
            "images": self.images,
            "labelled": self.labels.total(),
            "classes": {name: self.labels[i] for i, name in enumerate(classes)},
            "splits": _sorted(self.splits),
        }


def _open(path: Path, source_format: SourceFormat, use_labels: bool, findings: Findings) -> Source:
    if source_format is SourceFormat.FOLDER and not path.is_dir():
        raise SourceError(f"{path.name!r} is not a folder")
    if path.is_dir():
        if source_format is SourceFormat.PARQUET:
            raise SourceError(f"{path.name!r} is a folder; name the Parquet file")
        return FolderSource(path, use_labels=use_labels, findings=findings)
    with path.open("rb") as file:
        if source_format is SourceFormat.AUTO and file.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC:
            raise SourceError(f"{path.name!r} is neither a folder nor a Parquet file")
    return ParquetSource(path, use_labels=use_labels)


def _refuse_hopeless(accepted: int, rejected: int, report: dict[str, Any]) -> None:
    if accepted == 0:
        raise DatasetInvalid(
            "no row of the dataset can be used; the report names the reasons", extra={"report": report}
        )
    share = rejected / (accepted + rejected)
    if share > MAX_REJECTED_SHARE:
        detail = (
            f"{rejected} of {accepted + rejected} rows cannot be used, which is more than {MAX_REJECTED_SHARE:.0%}; "
            "the report names them with the reasons. Repair or remove them and import again"
        )
        raise DatasetInvalid(detail, extra={"report": report})


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
