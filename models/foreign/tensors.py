"""Tensors that do not exist yet: where each is to come from in a file, with nothing but shapes known.

A conversion of names is worked out on these, so it needs no weights and no torch; what it says is carried out once, by
``models.teacher_weights.convert``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from models.foreign.layout import Shape

Entries = Mapping[str, "Entry"]
"""Entries by the name that the tensor is to have."""


class Join(StrEnum):
    """How an entry is made of its parts."""

    ROWS = "rows"  # one after the other, along the first axis
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the file, or its tokens ``start`` up to ``stop`` along the second axis.

    Attributes:
        name: in the file.
        shape: of the part.
        start, stop: tokens; both None for the whole tensor.
    """

    name: str
    shape: Shape
    start: int | None = None
    stop: int | None = None

    def tokens(self, start: int, stop: int) -> Part:
        """Some tokens of a whole table (1, tokens, width)."""
        return Part(self.name, (self.shape[0], stop - start, *self.shape[2:]), start, stop)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor made of one or several parts."""

    parts: tuple[Part, ...]
    join: Join = Join.ROWS

    @classmethod
    def of(cls, name: str, shape: Shape) -> Entry:
        """A tensor as it lies in the file."""
        return cls((Part(name, shape),))

    @classmethod
    def stacked(cls, entries: Iterable[Entry]) -> Entry:
        """Whole tensors one after the other along the first axis."""
        return cls(tuple(entry.part for entry in entries))

    @property
    def part(self) -> Part:
        """The only part."""
        [part] = self.parts
        return part

    @property
    def shape(self) -> Shape:
        """Of the tensor that the parts give."""
        first = self.parts[0].shape
        if self.join is Join.SUM or len(self.parts) == 1:
            return first
        return (sum(part.shape[0] for part in self.parts), *first[1:])
