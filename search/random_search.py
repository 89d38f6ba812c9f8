"""Random search: the baseline that any other algorithm has to beat at the same number of evaluations."""

from __future__ import annotations

from typing import ClassVar

from search.generational import Child, GenerationalSearch


class RandomSearch(GenerationalSearch):
    """Every generation is drawn like the first one, gene-wise uniform within the limits, and never twice the same."""

    name: ClassVar[str] = "random"

    def _breed(self, wanted: int) -> list[Child]:
        return self._random(wanted)
