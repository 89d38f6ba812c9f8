"""Figures of each generation, kept within a bound however long a search runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST_ROWS = 256
"""A curve with more points looks the same."""


class Trace:
    """The figures of some generations, evenly spread, and always those of the last one.

    All are kept while they are few. When they become too many, every second one is dropped, and from then on only every
    second one is kept, and so on.
    """

    def __init__(self) -> None:
        self._step = 1
        self._rows: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """``{"generation": ..., figures by name}``, ascending."""
        last = self._last
        return [*self._rows, last] if last is not None and last not in self._rows[-1:] else list(self._rows)

    def add(self, generation: int, figures: Mapping[str, Any]) -> None:
        """Take the figures of the next generation."""
        self._last = {"generation": generation, **figures}
        if generation % self._step == 0:
            self._rows.append(self._last)
        if len(self._rows) > MOST_ROWS:
            self._step *= 2
            self._rows = [row for row in self._rows if row["generation"] % self._step == 0]

    def state(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return {"step": self._step, "rows": self._rows, "last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._step, self._rows, self._last = state["step"], list(state["rows"]), state["last"]
