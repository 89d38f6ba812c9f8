"""How often each choice occurs among the blocks of a network, and what follows from it whatever the order."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

INT64 = 2**63
"""The first positive number beyond 64 bits."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One choice for a block, or for the attention or the MLP of one, and what it adds to costs.

    Attributes:
        head_count, ratio: the genes that it sets; None where it leaves one open.
        heads, hidden: what it adds to the sums of head counts and of hidden widths.
        ns: what it adds to latency.
        live: bytes that are live while it runs; of a network the largest counts.
    """

    head_count: int | None
    ratio: float | None
    heads: int
    hidden: int
    ns: int
    live: int


@dataclass(frozen=True, slots=True)
class Axis:
    """All histograms of ``depth`` blocks over some kinds, or classes of those that cost the same.

    Entry ``i`` of ``ways``, ``heads``, ``hidden``, ``ns`` and ``live`` belongs to class ``i``: in how many orders its
    blocks can come, the sums, and the largest ``live``.  Its histograms are rows ``starts[i]`` to ``starts[i + 1]``.
    """

    kinds: tuple[Kind, ...]
    counts: np.ndarray  # (histograms, kinds), class by class
    orders: np.ndarray  # (histograms,)
    starts: np.ndarray  # (classes + 1,)
    ways: np.ndarray
    heads: np.ndarray
    hidden: np.ndarray
    ns: np.ndarray
    live: np.ndarray

    def __len__(self) -> int:
        return len(self.ways)

    @classmethod
    def single(cls) -> Axis:
        """One class without blocks, which adds nothing."""
        return cls.of((), 0)

    @classmethod
    def of(cls, kinds: Sequence[Kind], depth: int, *, merged: bool = False) -> Axis:
        """All histograms of ``depth`` blocks; with ``merged`` those that cost the same are one class."""
        counts, orders = _histograms(len(kinds), depth)

        def total(name: str) -> np.ndarray:
            return counts @ np.array([getattr(kind, name) for kind in kinds], dtype=np.int64)

        live = np.zeros(len(counts), dtype=np.int64)
        for j, kind in enumerate(kinds):
            np.maximum(live, np.where(counts[:, j] > 0, kind.live, 0), out=live)
        costs = np.stack([total("heads"), total("hidden"), total("ns"), live])
        starts = np.arange(len(counts) + 1)
        if merged:
            by_cost = np.lexsort(costs[::-1])  # stable: in a class, histograms keep their order
            counts, orders, costs = counts[by_cost], orders[by_cost], costs[:, by_cost]
            new = np.ones(len(counts), dtype=bool)
            new[1:] = (costs[:, 1:] != costs[:, :-1]).any(axis=0)
            starts = np.append(np.flatnonzero(new), len(counts))
        ways = np.add.reduceat(orders, starts[:-1])
        return cls(tuple(kinds), counts, orders, starts, ways, *costs[:, starts[:-1]])

    def unrank(self, index: int, rank: int) -> tuple[Kind, ...]:
        """The kinds of the blocks, in order, of way number ``rank`` of a class."""
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        below = [0, *accumulate(int(orders) for orders in self.orders[start:stop])]
        at = bisect_right(below, rank) - 1
        return _order(
            self.kinds, [int(count) for count in self.counts[start + at]], below[at + 1] - below[at], rank - below[at]
        )


def histogram_count(kinds: int, depth: int) -> int:
    """Number of histograms of ``depth`` blocks over so many kinds."""
    return math.comb(depth + kinds - 1, depth)


def _order(kinds: Sequence[Kind], left: list[int], orders: int, rank: int) -> tuple[Kind, ...]:
    """Order number ``rank``, lexicographically, of blocks of which ``left`` tells how many are of each kind."""
    picked = []
    for blocks in range(sum(left), 0, -1):
        for j, kind in enumerate(kinds):
            here = orders * left[j] // blocks  # orders that go on with this kind
            if rank < here:
                picked.append(kind)
                left[j] -= 1
                orders = here
                break
            rank -= here
    return tuple(picked)


@lru_cache(maxsize=8)  # the same for all widths and all limits
def _histograms(kinds: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, kinds) counts in lexicographic order, and (M,) in how many orders each can come: a multinomial."""
    # Multinomials of one depth sum up to kinds ** depth; where that is beyond 64 bits, Python's integers hold them.
    exact = np.int64 if kinds**depth < INT64 else object
    binomial = np.array([[math.comb(n, k) for k in range(depth + 1)] for n in range(depth + 1)], dtype=exact)
    left = np.array([depth])
    orders = np.ones(1, dtype=exact)
    columns: list[np.ndarray] = []
    for _ in range(kinds - 1):
        parent = np.repeat(np.arange(len(left)), left + 1)
        count = np.arange(len(parent)) - np.repeat(np.cumsum(left + 1) - (left + 1), left + 1)
        orders = orders[parent] * binomial[left[parent], count]
        columns = [column[parent] for column in columns]
        columns.append(count.astype(np.uint8))
        left = left[parent] - count
    columns += [left.astype(np.uint8)] * (kinds > 0)
    counts = np.stack(columns, axis=1) if columns else np.zeros((1, 0), dtype=np.uint8)
    counts.flags.writeable = orders.flags.writeable = False
    return counts, orders
