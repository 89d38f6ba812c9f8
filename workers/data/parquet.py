"""Reads one Parquet file in the layout of Hugging Face image datasets, or a blob of this service.

``image`` (or ``img``) is a struct with the field ``bytes``, or binary; ``label`` (optional) holds integers, named by
the ClassLabel feature in the schema's metadata where there is one, or texts; ``split`` (optional) holds texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.datasets.findings import FindingCode
from service.errors import shortened
from workers.data.blob import Row
from workers.data.findings import Findings
from workers.data.source import SPLIT_SPELLINGS, SourceError, split_named

_BATCH_ROWS = 256
_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMN = "label"
_SPLIT_COLUMN = "split"

# Hugging Face writes -1 where a split was published without labels.
_HF_NO_LABEL = -1


class ParquetSource:
    """One Parquet file; labels are read at once, images in batches.

    Args:
        path: the file.
        use_labels: False ignores the label column.

    Raises:
        SourceError: not a Parquet file, or without a column of images.
    """

    layout = "parquet"

    def __init__(self, path: Path, *, use_labels: bool) -> None:
        try:
            self._file: Any = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(f"{path.name!r} is not a Parquet file: {error}") from error
        schema = self._file.schema_arrow
        self._image = _image_column(schema)
        self._has_split = _has_split(schema)
        self._numbers: dict[int | str, int] | None = None
        self._classes: tuple[str, ...] = ()
        if use_labels and _LABEL_COLUMN in schema.names:
            self._read_classes(schema)

    @property
    def classes(self) -> tuple[str, ...]:
        """ClassLabel names where declared, else the sorted distinct labels as text; a negative number is none."""
        return self._classes

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    def rows(self, findings: Findings) -> Iterator[Row | None]:
        """Rows in file order."""
        columns = [self._image]
        columns += [_LABEL_COLUMN] if self._numbers is not None else []
        columns += [_SPLIT_COLUMN] if self._has_split else []
        number = 0
        for batch in self._file.iter_batches(_BATCH_ROWS, columns=columns):
            for values in batch.to_pylist():
                yield self._row(f"row {number}", values, findings)
                number += 1

    def _row(self, where: str, values: dict[str, Any], findings: Findings) -> Row | None:
        image = values[self._image]
        data = image.get("bytes") if isinstance(image, dict) else image
        if data is None:
            findings.add(FindingCode.UNREADABLE_IMAGE, where, "the row holds no image bytes")
            return None
        named = values.get(_SPLIT_COLUMN)
        split = None if named is None else split_named(named)
        if named is not None and split is None:
            findings.add(FindingCode.UNKNOWN_SPLIT, where, f"split {named!r}; known are {SPLIT_SPELLINGS}")
            return None
        label = values.get(_LABEL_COLUMN)
        if label is not None and self._numbers is not None and label not in self._numbers:
            allowed = shortened(", ".join(map(str, self._numbers)))
            findings.add(FindingCode.INVALID_LABEL, where, f"label {label!r}; allowed are {allowed}")
            return None
        return Row(
            where=where,
            image=data,
            label=None if label is None or self._numbers is None else self._numbers[label],
            split=split,
        )

    def _read_classes(self, schema: Any) -> None:
        kind = schema.field(_LABEL_COLUMN).type
        if not (pa.types.is_integer(kind) or _is_text(kind)):
            raise SourceError(f"column {_LABEL_COLUMN!r} has type {kind}; expected integers or texts")
        column = self._file.read(columns=[_LABEL_COLUMN]).column(0)
        present = sorted(pc.unique(column.drop_null()).to_pylist())
        if not present or present == [_HF_NO_LABEL]:
            return
        names = _class_label_names(schema)
        if names is not None:
            if len(set(names)) < len(names):
                raise SourceError(f"the class names {', '.join(names)} are not distinct")
            self._classes = names
            self._numbers = {i: i for i in range(len(names))}
        else:
            values = [value for value in present if isinstance(value, str) or value >= 0]
            self._classes = tuple(str(value) for value in values)
            self._numbers = {value: i for i, value in enumerate(values)}
        for name in self._classes:
            if "\0" in name:
                raise SourceError(f"the class name {name!r} holds a NUL character, which cannot be stored")


def _image_column(schema: Any) -> str:
    for name in _IMAGE_COLUMNS:
        if name in schema.names:
            kind = schema.field(name).type
            if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
                return name
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                return name
            raise SourceError(f"column {name!r} has type {kind}; expected binary or a struct with the field 'bytes'")
    raise SourceError(f"no column of images: found {', '.join(schema.names)}; expected {' or '.join(_IMAGE_COLUMNS)}")


def _has_split(schema: Any) -> bool:
    """Whether the file divides its rows. A column that cannot be read must not be ignored: its test images would be
    trained on.
    """
    if _SPLIT_COLUMN not in schema.names:
        return False
    kind = schema.field(_SPLIT_COLUMN).type
    if not (_is_text(kind) or pa.types.is_null(kind)):
        raise SourceError(f"column {_SPLIT_COLUMN!r} has type {kind}; expected texts")
    return True


def _is_text(kind: Any) -> bool:
    """Every way in which writers store texts: pandas, polars and pyarrow each have another default."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _class_label_names(schema: Any) -> tuple[str, ...] | None:
    """Names of the ClassLabel feature, or the classes of a blob of this service."""
    metadata = schema.metadata or {}
    try:
        if b"vitailor" in metadata:
            names = json.loads(metadata[b"vitailor"])["classes"] or None
        else:
            names = json.loads(metadata[b"huggingface"])["info"]["features"][_LABEL_COLUMN].get("names")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # no such feature: the labels themselves are the names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)
