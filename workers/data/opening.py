"""Finds out what a path holds: first the container (folder, zip, tar), then the layout inside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workers.data.findings import Findings
from workers.data.folder import FolderSource
from workers.data.limits import Guard
from workers.data.parquet import ParquetSource
from workers.data.source import Source, SourceError
from workers.data.tars import COMPRESSIONS, TarTree, compression_of, is_tar
from workers.data.tree import FolderTree, Tree
from workers.data.zips import ZIP_MAGICS, ZipTree

_PARQUET_MAGIC = b"PAR1"


class SourceFormat(StrEnum):
    """The layout of a dataset, in whatever container it lies."""

    AUTO = "auto"
    FOLDER = "folder"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How to read a source.

    Attributes:
        source_format: the layout; found out by default.
        use_labels: False leaves labels out.
    """

    source_format: SourceFormat = SourceFormat.AUTO
    use_labels: bool = True


DEFAULT_OPTIONS = SourceOptions()


@dataclass(frozen=True, slots=True)
class Opened:
    """A source, and the container that it lies in."""

    source: Source
    container: str


def open_source(path: Path, scratch: Path, options: SourceOptions, findings: Findings, guard: Guard) -> Opened:
    """Open what the path holds.

    Args:
        path: a folder or file.
        scratch: folder for temporary files.
        options: how to read it.
        findings: where everything that is left out is noted.
        guard: bounds what is read.

    Raises:
        SourceError: nothing that can be imported; the message says what was found and what is expected.
    """
    tree = _tree(path, scratch, options, findings, guard)
    if tree is None:
        return Opened(ParquetSource(path, use_labels=options.use_labels), "file")
    if options.source_format is SourceFormat.PARQUET:
        raise SourceError(f"{tree.name!r} is a {tree.container}; name the Parquet file")
    return Opened(FolderSource(tree, use_labels=options.use_labels, findings=findings), tree.container)


def _tree(path: Path, scratch: Path, options: SourceOptions, findings: Findings, guard: Guard) -> Tree | None:
    """The files of a container; None for a Parquet file, which is none."""
    if path.is_dir():
        return FolderTree(path, findings, guard)
    with path.open("rb") as file:
        start = file.read(len(_PARQUET_MAGIC))
    if start in ZIP_MAGICS:
        return ZipTree(path, findings, guard)
    if compression_of(path) is not None or is_tar(path):
        return TarTree(path, scratch, findings, guard)
    if start == _PARQUET_MAGIC or options.source_format is SourceFormat.PARQUET:
        return None
    known = ", ".join(f"tar.{name}" for name in COMPRESSIONS.values())
    raise SourceError(
        f"{path.name!r} is neither a folder nor a file of a known kind: expected a zip, tar, {known} or Parquet file"
    )
