"""Members of a space within limits on affine costs, counted and found by sums over the blocks.

Two facts carry this.  These costs depend on the genes only through width, depth and two sums over the blocks, of head
counts and of MLP hidden widths (:mod:`search.metrics`); and the two sums are independent, since heads and ratios are.
Fix width, depth and the sum of heads (a *line*): every limit then is an interval of the sum of hidden widths, and
counting the gene combinations of a sum is a short dynamic program.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from operator import attrgetter

from models.architecture import Genotype
from search.metrics import AFFINE_METRICS, Metric, Window, violation
from search.prices import Prices
from search.space import Space


@dataclass(frozen=True, slots=True, order=True)
class _Near:
    """All members of one width, depth and pair of sums, by their distance from the limits; sums as indices."""

    violation: float
    embed_dim: int
    depth: int
    heads: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Slab:
    """Members of one depth that follow each other in the order of a set."""

    first: int
    depth: int
    count: int


class BlockSums:
    """Sums of one choice for each of ``n`` blocks: which occur, in how many ways, and each way by its rank.

    The ways of a sum are ordered lexicographically, those of an interval of sums by the sum first.
    """

    def __init__(self, choices: Sequence[int], max_blocks: int) -> None:
        self._choices = tuple(choices)
        self._ways: list[dict[int, int]] = [{0: 1}]
        for _ in range(max_blocks):
            extended: defaultdict[int, int] = defaultdict(int)
            for total, ways in self._ways[-1].items():
                for choice in self._choices:
                    extended[total + choice] += ways
            self._ways.append(dict(extended))
        self._sorted = [sorted(ways) for ways in self._ways]
        self._below = [
            [0, *accumulate(ways[total] for total in totals)]
            for ways, totals in zip(self._ways, self._sorted, strict=True)
        ]

    def totals(self, n_blocks: int) -> Sequence[int]:
        """The sums that occur, ascending."""
        return self._sorted[n_blocks]

    def span(self, n_blocks: int, low: int | None, high: int | None) -> tuple[int, int]:
        """Half-open range of indices into :meth:`totals` with ``low <= sum <= high``."""
        totals = self._sorted[n_blocks]
        start = 0 if low is None else bisect_left(totals, low)
        stop = len(totals) if high is None else bisect_right(totals, high)
        return start, max(start, stop)

    def ways(self, n_blocks: int, start: int, stop: int) -> int:
        """In how many ways the sums of this index range come about."""
        below = self._below[n_blocks]
        return below[stop] - below[start]

    def unrank(self, n_blocks: int, start: int, rank: int) -> tuple[int, ...]:
        """The choices of way number ``rank``, counted from the first way of sum number ``start``."""
        below = self._below[n_blocks]
        rank += below[start]
        index = bisect_right(below, rank) - 1
        rank -= below[index]
        total = self._sorted[n_blocks][index]
        picked = []
        for left in range(n_blocks - 1, -1, -1):
            ways = self._ways[left]
            for choice in self._choices:
                here = ways.get(total - choice, 0)
                if rank < here:
                    picked.append(choice)
                    total -= choice
                    break
                rank -= here
        return tuple(picked)


@dataclass(frozen=True, slots=True)
class _Line:
    """Feasible members of one width, depth and sum of heads; sums are indices into ``BlockSums.totals``."""

    embed_dim: int
    depth: int
    heads: int
    hidden_start: int
    hidden_stop: int
    ways: int


class Lines:
    """The members of a space within windows on affine metrics, in the order of their lines.

    Args:
        prices: of the space.
        windows: on metrics of :data:`search.metrics.AFFINE_METRICS`.

    Attributes:
        count: exact number of members within the windows.
    """

    def __init__(self, prices: Prices, windows: Sequence[Window]) -> None:
        space = prices.space
        self.space = space
        self.windows = tuple(windows)
        self._prices = prices
        self._heads, self._hidden = _block_sums(space)
        self._ratio_of = {width: {f: r for r, f in hidden.items()} for width, hidden in prices.hidden_of.items()}
        self._costs = prices.affine
        self._lines = [line for line in self._all_lines() if line.ways]
        self._below = [0, *accumulate(line.ways for line in self._lines)]
        self.count = self._below[-1]

    def slabs(self) -> Iterator[Slab]:
        """Members of one width and depth, which follow each other."""
        position = 0
        for (_, depth), group in groupby(self._lines, key=attrgetter("embed_dim", "depth")):
            lines = list(group)
            yield Slab(self._below[position], depth, sum(line.ways for line in lines))
            position += len(lines)

    def member(self, index: int) -> Genotype:
        """Member number ``index``, which must be below ``count``."""
        number = bisect_right(self._below, index) - 1
        line = self._lines[number]
        hidden = self._hidden[line.embed_dim]
        heads_rank, hidden_rank = divmod(
            index - self._below[number], hidden.ways(line.depth, line.hidden_start, line.hidden_stop)
        )
        return self._genotype(
            line.embed_dim,
            self._heads.unrank(line.depth, line.heads, heads_rank),
            hidden.unrank(line.depth, line.hidden_start, hidden_rank),
        )

    def extremes(self) -> tuple[Genotype, Genotype]:
        """The members with the fewest and with the most parameters, of a set that is not empty."""
        # Costs grow with the sum of hidden widths, so on each line the ends of its interval are the extremes.
        ends = [
            self._genotype(
                line.embed_dim,
                self._heads.unrank(line.depth, line.heads, 0),
                self._hidden[line.embed_dim].unrank(line.depth, hidden, 0),
            )
            for line in self._lines
            for hidden in (line.hidden_start, line.hidden_stop - 1)
        ]
        by_size = sorted(ends, key=lambda genotype: (self._prices.count(Metric.PARAMS_M, genotype), genotype))
        return by_size[0], by_size[-1]

    def nearest(self, k: int) -> list[Genotype]:
        """The ``k`` members closest to the windows, best first, one of each width, depth and pair of sums."""
        return [
            self._genotype(
                near.embed_dim,
                self._heads.unrank(near.depth, near.heads, 0),
                self._hidden[near.embed_dim].unrank(near.depth, near.hidden, 0),
            )
            for near in heapq.nsmallest(k, self._around_limits(k))
        ]

    def _all_lines(self) -> Iterator[_Line]:
        for width in self.space.embed_dim:
            hidden = self._hidden[width]
            for depth in self.space.depth:
                for index, total in enumerate(self._heads.totals(depth)):
                    start, stop = hidden.span(depth, *self._hidden_bounds(width, depth, total))
                    ways = self._heads.ways(depth, index, index + 1) * hidden.ways(depth, start, stop)
                    yield _Line(width, depth, index, start, stop, ways)

    def _hidden_bounds(self, width: int, depth: int, heads: int) -> tuple[int | None, int | None]:
        """The sums of hidden widths that all windows allow on a line; inclusive."""
        lows, highs = [], []
        for window in self.windows:
            affine = self._costs[window.metric, width]
            rest = affine.count(depth, heads, 0)
            if window.low is not None:
                lows.append(-((rest - window.low) // affine.per_hidden))  # rounds up
            if window.high is not None:
                highs.append((window.high - rest) // affine.per_hidden)
        return max(lows, default=None), min(highs, default=None)

    def _around_limits(self, k: int) -> Iterator[_Near]:
        """Sums near every limit on every line.

        Along a line the distance is convex in the sum of hidden widths with its kinks at the limits, so the k
        smallest values lie within k steps of one of them.
        """
        for width in self.space.embed_dim:
            for depth in self.space.depth:
                totals = self._hidden[width].totals(depth)
                for index, heads in enumerate(self._heads.totals(depth)):
                    for hidden in self._hidden_near_limits(width, depth, heads, k):
                        counts = {
                            metric: self._costs[metric, width].count(depth, heads, totals[hidden])
                            for metric in AFFINE_METRICS
                        }
                        yield _Near(violation(self.windows, counts), width, depth, index, hidden)

    def _hidden_near_limits(self, width: int, depth: int, heads: int, k: int) -> Sequence[int]:
        totals = self._hidden[width].totals(depth)
        near: set[int] = set()
        for window in self.windows:
            affine = self._costs[window.metric, width]
            for limit in (window.low, window.high):
                if limit is not None:
                    kink = (limit - affine.count(depth, heads, 0)) // affine.per_hidden
                    centre = bisect_left(totals, kink)
                    near.update(range(max(0, centre - k), min(len(totals), centre + k + 1)))
        return sorted(near)

    def _genotype(self, width: int, heads: tuple[int, ...], hidden: tuple[int, ...]) -> Genotype:
        ratio_of = self._ratio_of[width]
        return (len(heads), *(ratio_of[f] for f in hidden), *heads, width)


@lru_cache(maxsize=16)  # a function of the space alone, and asked for again with every other set of limits
def _block_sums(space: Space) -> tuple[BlockSums, dict[int, BlockSums]]:
    """Sums of head counts, and sums of hidden widths at each network width."""
    depth = space.depth[-1]
    return (
        BlockSums(space.num_heads, depth),
        {width: BlockSums(space.hidden_dims(width), depth) for width in space.embed_dim},
    )
