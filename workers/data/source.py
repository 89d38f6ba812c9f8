"""What an import reads from: anything that yields rows in a stable order and notes what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from workers.data.blob import Row, SplitName
from workers.data.findings import Findings

SPLIT_ALIASES: dict[str, SplitName] = {
    "train": SplitName.TRAIN,
    "training": SplitName.TRAIN,
    "val": SplitName.VAL,
    "valid": SplitName.VAL,
    "validation": SplitName.VAL,
    "test": SplitName.TEST,
    "testing": SplitName.TEST,
}
"""Spellings of split names, in lower case, of folders and of values in a ``split`` column."""


class SourceError(ValueError):
    """There is nothing to import here; the message says what was found and what is expected."""


class Source(Protocol):
    """A dataset before it is imported."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the labels; empty without labels."""
        ...

    @property
    def count(self) -> int:
        """Number of rows that :meth:`rows` will look at, for progress."""
        ...

    def rows(self, findings: Findings) -> Iterator[Row | None]:
        """Rows in a stable order; None for a row that is left out, which ``findings`` explains."""
        ...
