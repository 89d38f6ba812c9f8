"""What a search has told, measured and scored, in files that are never written again.

A checkpoint of a long search would otherwise hold all of it again and again. So each save writes what is new into a
file of its own, and the checkpoint names all files in order. When there are :data:`FAN_OUT` of a kind in a row, they
become one of the next kind, as in a log-structured merge tree (O'Neil et al. 1996): after *s* saves there are at most
``FAN_OUT`` times ``log(s)`` files, and each row has been written ``log(s)`` times, both to the base ``FAN_OUT``.

Files that others have replaced stay in the run directory, because the supervisor may not have read them yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from workers.stages.context import Context, Json
from workers.training.files import write_bytes

FAN_OUT = 8
"""Files of one kind that become one of the next: more make more files, fewer write each row more often."""

SEARCH_FILE = "search.jsonl"
"""The whole search, as a file of the result."""

_NAME = "search-{:08d}.jsonl"
_BASE = 1000  # level of what was taken over: as there is only one such file, it is never written again


class Kept(StrEnum):
    """What a row is."""

    TOLD = "told"  # of the search: a row of search.asktell.SearchAlgorithm.history
    RANDOM = "random"  # the same of the baseline
    MEASURES = "measures"  # genotype, measures by name
    DROPPED = "dropped"  # the same of a network that lost a race, on a part of the images
    LATENCY = "latency"  # genotype, milliseconds
    FINALIST = "finalist"  # the same of one of the best, measured at the end because a table has only predicted it
    END = "end"  # of a whole search: the state with which it ended


_TOLD = tuple(f'["{kind.value}",'.encode() for kind in (Kept.TOLD, Kept.RANDOM))

Rows = Mapping[Kept, Sequence[Any]]
"""Rows of each kind in the order in which they were added; of kinds without any an empty sequence."""


@dataclass(frozen=True, slots=True)
class _Segment:
    name: str
    level: int  # how often its rows have been written again


class SearchLedger:
    """The rows of one search. They are JSON, with NaN and infinities, and read back as they were, to the bit.

    Args:
        ctx: of the stage, whose checkpoints the files become a part of.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._segments: list[_Segment] = []
        self._serial = 0  # of the next file
        self._fresh: list[bytes] = []  # lines in no file yet

    def add(self, kind: Kept, rows: Iterable[Any]) -> None:
        """Add rows; they are part of the next :meth:`save`."""
        self._fresh += [json.dumps([kind.value, row], separators=(",", ":")).encode() + b"\n" for row in rows]

    def save(self) -> Json:
        """Write what is new, and return what :meth:`restore` needs; its size grows with the logarithm of the saves."""
        if self._fresh:
            level, data = 0, b"".join(self._fresh)
            while len(full := self._last_of(level)) >= FAN_OUT - 1:
                data = b"".join([*(self._ctx.path(segment.name).read_bytes() for segment in full), data])
                self._forget(full)
                level += 1
            self._write(_NAME.format(self._serial), level, data)
            self._serial += 1
        return {"segments": [[segment.name, segment.level] for segment in self._segments], "serial": self._serial}

    def seal(self, end: Json) -> None:
        """Write all rows, and the state at the end, into the one file that is a part of the result.

        Its bytes do not depend on interruptions, after which a generation is measured in another order.
        """
        self.add(Kept.END, [end])
        data = b"".join([*(self._ctx.path(segment.name).read_bytes() for segment in self._segments), *self._fresh])
        lines = data.splitlines(keepends=True)
        told = [line for line in lines if line.startswith(_TOLD)]
        self._forget(self._segments)
        self._write(SEARCH_FILE, 0, b"".join([*told, *sorted(line for line in lines if not line.startswith(_TOLD))]))

    def restore(self, state: Json) -> Rows:
        """Go on from a state of the stage, and return all rows.

        Args:
            state: with what :meth:`save` returned as ``ledger``. One of an earlier version has everything in itself;
                its rows are then added here.
        """
        rows: dict[Kept, list[Any]] = {kind: [] for kind in Kept}
        if "ledger" not in state:
            for kind, known in _whole_state(state).items():
                self.add(kind, known)
            return {**rows, **_whole_state(state)}
        self._segments = [_Segment(name, level) for name, level in state["ledger"]["segments"]]
        self._serial = state["ledger"]["serial"]
        for segment in self._segments:
            with self._ctx.path(segment.name).open("rb") as lines:
                for line in lines:
                    kind, row = json.loads(line)
                    rows[Kept(kind)].append(row)
        return rows

    def take_over(self, path: Path) -> tuple[Json, Rows]:
        """Go on from the file of a whole search: the state with which it ended, and its rows.

        What came after its last proposal is left out, since it would be another after a longer search.
        """
        rows: dict[Kept, list[Any]] = {kind: [] for kind in Kept}
        kept: list[bytes] = []
        with path.open("rb") as lines:
            for line in lines:
                kind, row = json.loads(line)
                if kind not in (Kept.RANDOM, Kept.FINALIST):
                    rows[Kept(kind)].append(row)
                    kept += [line] if kind != Kept.END else []
        [end] = rows[Kept.END]
        self._write(_NAME.format(self._serial), _BASE, b"".join(kept))
        self._serial += 1
        return end, rows

    def _last_of(self, level: int) -> list[_Segment]:
        """The last segments in a row that are of this level; levels never ascend."""
        return [segment for segment in self._segments if segment.level == level]

    def _write(self, name: str, level: int, data: bytes) -> None:
        self._ctx.keep(write_bytes(self._ctx.path(name), data))
        self._segments.append(_Segment(name, level))
        self._fresh = []

    def _forget(self, replaced: Sequence[_Segment]) -> None:
        for segment in replaced:
            self._ctx.drop(segment.name)
        self._segments = [segment for segment in self._segments if segment not in replaced]


def _whole_state(state: Json) -> dict[Kept, list[Any]]:
    return {
        Kept.TOLD: state["search"]["history"],
        Kept.RANDOM: (state["baseline"] or {}).get("history", []),
        Kept.MEASURES: state["measures"],
        Kept.DROPPED: state.get("dropped", []),
        Kept.LATENCY: state.get("latencies", []),
    }
