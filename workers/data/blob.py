"""The canonical form of an imported dataset: one Parquet file whose SHA-256 is the dataset's digest.

Columns: ``image`` (the original file's bytes), ``label`` (int32, null when unknown), ``split`` (``train``, ``val``,
``test``, null when the dataset brings no split for the row). Class names lie in the schema's metadata, so that the
digest covers everything that a training can see. Writer settings are fixed and row groups are cut by content: equal
rows in equal order give equal bytes under one version of the Parquet library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

_METADATA_KEY = b"vitailor"
_VERSION = 1

# A row group is held in memory while it is written; images are compressed already, so Parquet need not try again.
_GROUP_BYTES = 32 * 1024 * 1024
_GROUP_ROWS = 4096


class SplitName(StrEnum):
    """Official splits that a dataset may bring."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


NO_LABEL = -1
"""Stands for a null label in arrays."""


@dataclass(frozen=True, slots=True)
class Row:
    """One image of a dataset as it was found."""

    where: str  # path or row number, for reports
    image: bytes
    label: int | None
    split: SplitName | None


class BlobError(ValueError):
    """The file is not a canonical dataset blob."""


class BlobWriter:
    """Streams rows into a blob; use as a context manager, the file is complete when the block ends."""

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        metadata = {_METADATA_KEY: _canonical({"version": _VERSION, "classes": list(classes)})}
        self._schema = pa.schema(
            [
                pa.field("image", pa.binary(), nullable=False),
                pa.field("label", pa.int32()),
                pa.field("split", pa.string()),
            ],
            metadata=metadata,
        )
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            version="2.6",
            data_page_version="1.0",
        )
        self._rows: list[Row] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()

    def append(self, row: Row) -> None:
        """Add one row; order is kept."""
        self._rows.append(row)
        self._bytes += len(row.image)
        if self._bytes >= _GROUP_BYTES or len(self._rows) == _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = {
            "image": [row.image for row in self._rows],
            "label": [row.label for row in self._rows],
            "split": [row.split.value if row.split else None for row in self._rows],
        }
        self._writer.write_table(pa.table(columns, schema=self._schema), row_group_size=len(self._rows))
        self._rows, self._bytes = [], 0


@dataclass(frozen=True, slots=True)
class BlobIndex:
    """Everything of a blob but the images.

    Attributes:
        classes: names, in the order of the labels.
        labels: int64 (N,), :data:`NO_LABEL` where unknown.
        splits: N official splits, None where the dataset brings none.
    """

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    splits: tuple[SplitName | None, ...]


def read_index(path: Path) -> BlobIndex:
    """Read labels, splits and class names.

    Raises:
        BlobError: when the file is not a blob of this version.
    """
    file = _open(path)
    table = file.read(columns=["label", "split"])
    return BlobIndex(
        classes=tuple(_header(file)["classes"]),
        labels=table.column("label").fill_null(NO_LABEL).to_numpy().astype(np.int64),
        splits=tuple(SplitName(s) if s is not None else None for s in table.column("split").to_pylist()),
    )


def read_images(path: Path, batch_rows: int = 256) -> Iterator[list[bytes]]:
    """Image bytes in row order, in batches.

    Raises:
        BlobError: when the file is not a blob of this version.
    """
    for batch in _open(path).iter_batches(batch_rows, columns=["image"]):
        yield batch.column(0).to_pylist()


def _open(path: Path) -> Any:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise BlobError(f"{path.name} is not a Parquet file: {error}") from error
    if _header(file).get("version") != _VERSION:
        raise BlobError(f"{path.name} is no dataset blob of version {_VERSION}")
    return file


def _header(file: Any) -> dict[str, Any]:
    raw = (file.schema_arrow.metadata or {}).get(_METADATA_KEY)
    return json.loads(raw) if raw else {}


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
