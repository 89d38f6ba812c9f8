"""What an import reads from: anything that yields rows in a stable order and notes what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from workers.data.blob import Row, SplitName
from workers.data.findings import Findings

_ALIASES: dict[str, SplitName] = {
    **dict.fromkeys(("train", "training", "trn"), SplitName.TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "validate", "dev", "eval", "evaluation"), SplitName.VAL),
    **dict.fromkeys(("test", "testing", "tst"), SplitName.TEST),
}

# Words around the name of a split that mean nothing of their own, as in `train_set`, `seg_test` and `val-images`.
_FILLERS = frozenset({"set", "data", "dataset", "images", "image", "imgs", "img", "split", "folder", "seg", "part"})
_WORDS = re.compile(r"[a-z]+|[0-9]+")

SPLIT_SPELLINGS = ", ".join(_ALIASES)
"""The words that name a split, for messages."""


def split_named(name: str) -> SplitName | None:
    """The official split that a folder, a file or a value of a column names; None when it names none.

    Case, digits (`val2017`) and separators do not count, nor words such as `set` or `images`.
    """
    folded = name.casefold()
    if not folded.isascii():
        return None
    words = [word for word in _WORDS.findall(folded) if not word.isdigit() and word not in _FILLERS]
    if len(words) != 1:
        return None
    (word,) = words
    return _ALIASES.get(word) or _ALIASES.get(word.removesuffix("set"))


class SourceError(ValueError):
    """There is nothing to import here; the message says what was found and what is expected."""


class Source(Protocol):
    """A dataset before it is imported."""

    @property
    def layout(self) -> str:
        """Name of the layout, such as ``folder``."""
        ...

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
