"""Members of a space within limits on peak memory or latency, counted and found by how often each choice occurs.

Such costs depend on the genes through width, depth and the *histograms* of the blocks' choices, not on the order of
the blocks.  Where a block's time is the sum of a part by head count and a part by MLP ratio, as in tables that were
fitted so, heads and ratios have a histogram each, and every pair of these is a *profile*; else a profile is one
histogram of (heads, ratio) pairs.  Profiles are few (tens of thousands in AutoFormer's spaces) and are priced all at
once.  All members of a profile cost the same, and their number is a product of multinomials.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np

from models.architecture import FieldProblem, Genotype
from search.errors import SpecError
from search.histograms import INT64, Axis, Kind, histogram_count
from search.latency import LatencyTable
from search.lines import Slab
from search.metrics import AFFINE_METRICS, Metric, Window
from search.prices import Prices

MAX_COUNTS = 50_000_000
"""Of a space: numbers in all histograms of all widths and depths. They take a few seconds, and those of one depth as
many bytes. AutoFormer's largest space has 42 million when head count and ratio have one time together."""

_BIG_INTEGERS = 16  # times as slow is arithmetic with numbers beyond 64 bits

MAX_PROFILES = 6_000_000
"""Of a space: they are decided within seconds, and their ranks take a hundred megabytes. AutoFormer's largest space has
4.6 million when head count and ratio have one time together, and 0.2 million when they have one each."""

_CHUNK = 1_000_000  # profiles that are priced at once

_UNBOUNDED = 2**62  # beyond any count, within 64 bits


class TooManyProfiles(SpecError):
    """A limit on peak memory or latency cannot be decided exactly: the space has too many profiles."""


@dataclass(frozen=True, slots=True)
class _Block:
    """All members of one width and depth: two axes whose pairs are profiles, and the profiles within the limits."""

    embed_dim: int
    depth: int
    first: Axis
    second: Axis
    within: np.ndarray  # ascending; profile number = index on the first axis * length of the second + index on it
    ranks: np.ndarray  # members up to and including each of these

    @property
    def count(self) -> int:
        return int(self.ranks[-1]) if len(self.ranks) else 0


class Profiles:
    """The members of a space within windows on any metrics that have a price, in the order of their profiles.

    Args:
        prices: of the space.
        windows: the limits.

    Attributes:
        count: exact number of members within the windows.

    Raises:
        TooManyProfiles: pointers name the axis with more choices.
    """

    def __init__(self, prices: Prices, windows: Sequence[Window]) -> None:
        self.windows = tuple(windows)
        self._prices = prices
        self._joint = _is_joint(prices, self.windows)
        _check_histograms(prices, self._joint)
        self._blocks: list[_Block] = []
        self._smallest: tuple[int, Genotype] | None = None
        self._largest: tuple[int, Genotype] | None = None
        profiles = 0
        for width, depth in product(prices.space.embed_dim, prices.space.depth):
            axes = self._axes(width, depth)
            profiles += len(axes[0]) * len(axes[1])
            if profiles > MAX_PROFILES:
                raise _too_many(prices, f"more than {MAX_PROFILES:,} profiles")
            self._blocks.append(self._decided(width, depth, *axes))
        self._below = [0, *accumulate(block.count for block in self._blocks)]
        self.count = self._below[-1]

    def slabs(self) -> Iterator[Slab]:
        """Members of one width and depth, which follow each other."""
        for first, block in zip(self._below, self._blocks, strict=False):
            yield Slab(first, block.depth, block.count)

    def member(self, index: int) -> Genotype:
        """Member number ``index``, which must be below ``count``."""
        number = bisect_right(self._below, index) - 1
        block = self._blocks[number]
        rank = index - self._below[number]
        at = int(np.searchsorted(block.ranks, rank, side="right"))
        return self._genotype(block, int(block.within[at]), rank - (int(block.ranks[at - 1]) if at else 0))

    def extremes(self) -> tuple[Genotype, Genotype]:
        """The members with the fewest and with the most parameters, of a set that is not empty."""
        ends = []
        for block in self._blocks:
            if block.count:
                sizes = self._counts(block, Metric.PARAMS_M, 0, len(block.first)).ravel()[block.within]
                ends += [self._genotype(block, int(block.within[pick(sizes)]), 0) for pick in (np.argmin, np.argmax)]
        by_size = sorted(ends, key=lambda genotype: (self._prices.count(Metric.PARAMS_M, genotype), genotype))
        return by_size[0], by_size[-1]

    def nearest(self, k: int) -> list[Genotype]:
        """The ``k`` members closest to the windows, best first, one of each profile."""
        near: list[tuple[float, int, int]] = []
        for number, block in enumerate(self._blocks):
            for start, rows in _chunks(block.first, block.second):
                excess = self._excess(block, start, rows).ravel()
                least = np.argsort(excess, kind="stable")[:k]
                near += [(float(excess[at]), number, start * len(block.second) + int(at)) for at in least]
            near = sorted(near)[:k]
        return [self._genotype(self._blocks[number], profile, 0) for _, number, profile in near]

    def _axes(self, width: int, depth: int) -> tuple[Axis, Axis]:
        space, prices = self._prices.space, self._prices
        hidden_of = prices.hidden_of[width]
        live_of_heads = {heads: prices.live_of_heads(width, depth, heads) for heads in space.num_heads}
        live_of_ratio = {ratio: prices.live_of_ratio(width, depth, ratio) for ratio in space.mlp_ratio}
        if self._joint:
            assert prices.table is not None, "only a table is joint"
            kinds = [
                Kind(h, r, h, hidden_of[r], prices.table.block_ns[width, h, r], max(live_of_heads[h], live_of_ratio[r]))
                for h, r in product(space.num_heads, space.mlp_ratio)
            ]
            return Axis.of(kinds, depth), Axis.single()
        head_ns, ratio_ns = self._parts_ns(width)
        heads = [Kind(h, None, h, 0, head_ns[h], live_of_heads[h]) for h in space.num_heads]
        ratios = [Kind(None, r, 0, hidden_of[r], ratio_ns[r], live_of_ratio[r]) for r in space.mlp_ratio]
        return Axis.of(heads, depth, merged=True), Axis.of(ratios, depth, merged=True)

    def _parts_ns(self, width: int) -> tuple[dict[int, int], dict[float, int]]:
        """A block's time split into a part by head count and a part by ratio; of no use without a limit on latency."""
        space, table = self._prices.space, self._prices.table
        if table is None or not _limits_latency(self.windows):
            return dict.fromkeys(space.num_heads, 0), dict.fromkeys(space.mlp_ratio, 0)
        first = space.num_heads[0], space.mlp_ratio[0]
        of_first = table.block_ns[width, *first]
        return (
            {heads: table.block_ns[width, heads, first[1]] for heads in space.num_heads},
            {ratio: table.block_ns[width, first[0], ratio] - of_first for ratio in space.mlp_ratio},
        )

    def _decided(self, width: int, depth: int, first: Axis, second: Axis) -> _Block:
        undecided = _Block(width, depth, first, second, np.empty(0, np.int64), np.empty(0, np.int64))
        within = []
        for start, rows in _chunks(first, second):
            meets = np.ones((rows, len(second)), dtype=bool)
            for window in self.windows:
                counts = self._counts(undecided, window.metric, start, rows)
                if window.low is not None:
                    meets &= counts >= min(window.low, _UNBOUNDED)
                if window.high is not None:
                    meets &= counts <= min(window.high, _UNBOUNDED)
            within.append(np.flatnonzero(meets) + start * len(second))
        numbers = np.concatenate(within)
        at_first, at_second = np.divmod(numbers, len(second))
        # Of Python's integers where 64 bits might not hold their sum.
        kind = np.int64 if _combinations(self._prices, depth) < INT64 else object
        ways = first.ways[at_first].astype(kind) * second.ways[at_second].astype(kind)
        return _Block(width, depth, first, second, numbers, np.cumsum(ways, dtype=kind))

    def _counts(self, block: _Block, metric: Metric, start: int, rows: int) -> np.ndarray:
        """(rows, second axis): counts of profiles, of ``rows`` entries of the first axis from ``start`` on."""
        first, second, at = block.first, block.second, slice(start, start + rows)
        if metric is Metric.LATENCY_MS:
            assert self._prices.table is not None, "latency has a price only with a table"
            fixed = self._prices.table.fixed_ns[block.embed_dim]
            latency: np.ndarray = np.add.outer(fixed + first.ns[at], second.ns)
            return latency
        affine = self._prices.affine[metric if metric in AFFINE_METRICS else Metric.WEIGHT_MB, block.embed_dim]
        one = affine.count(block.depth, 0, 0) + affine.per_head * first.heads[at] + affine.per_hidden * first.hidden[at]
        counts: np.ndarray = np.add.outer(one, affine.per_head * second.heads + affine.per_hidden * second.hidden)
        if metric is Metric.PEAK_MEM_MB:
            counts += np.maximum.outer(first.live[at], second.live)
        return counts

    def _excess(self, block: _Block, start: int, rows: int) -> np.ndarray:
        """(rows, second axis): :func:`search.metrics.violation` of profiles, by the same arithmetic."""
        total = np.zeros((rows, len(block.second)))
        for window in self.windows:
            counts = self._counts(block, window.metric, start, rows)
            excess = np.zeros(counts.shape)
            if window.high is not None:
                high = min(window.high, _UNBOUNDED)
                excess = np.where(counts > high, (counts - high) / max(1, high), excess)
            if window.low is not None:
                low = min(window.low, _UNBOUNDED)
                excess = np.where(counts < low, (low - counts) / max(1, low), excess)
            total += excess
        return total

    def _genotype(self, block: _Block, profile: int, rank: int) -> Genotype:
        at_first, at_second = divmod(profile, len(block.second))
        first_rank, second_rank = divmod(rank, int(block.second.ways[at_second]))
        first = block.first.unrank(at_first, first_rank)
        second = first if self._joint else block.second.unrank(at_second, second_rank)
        heads = [kind.head_count for kind in first if kind.head_count is not None]
        ratios = [kind.ratio for kind in second if kind.ratio is not None]
        return (block.depth, *ratios, *heads, block.embed_dim)


def _limits_latency(windows: Sequence[Window]) -> bool:
    return any(window.metric is Metric.LATENCY_MS for window in windows)


def _is_joint(prices: Prices, windows: Sequence[Window]) -> bool:
    """Whether times of blocks are limited that are no sum of a part by head count and a part by ratio."""
    if not _limits_latency(windows):
        return False
    space, table = prices.space, prices.table
    if table is None:
        raise ValueError("latency has a price only with the table of a device")
    return not all(_is_sum(table, width, space.num_heads, space.mlp_ratio) for width in space.embed_dim)


def _is_sum(table: LatencyTable, width: int, heads: Sequence[int], ratios: Sequence[float]) -> bool:
    ns = np.array([[table.block_ns[width, h, r] for r in ratios] for h in heads])
    return bool((ns - ns[:1] == ns[:, :1] - ns[0, 0]).all())


def _check_histograms(prices: Prices, joint: bool) -> None:
    space = prices.space
    heads, ratios = len(space.num_heads), len(space.mlp_ratio)
    found = len(space.embed_dim) * sum(
        kinds * histogram_count(kinds, depth) * (1 if kinds**depth < INT64 else _BIG_INTEGERS)
        for depth in space.depth
        for kinds in ((heads * ratios,) if joint else (heads, ratios))
    )
    if found > MAX_COUNTS:
        raise _too_many(prices, f"histograms of {found:.3g} numbers, at most {MAX_COUNTS:.3g}")


def _too_many(prices: Prices, found: str) -> TooManyProfiles:
    space = prices.space
    axis = "num_heads" if len(space.num_heads) > len(space.mlp_ratio) else "mlp_ratio"
    allowed = (
        "fewer choices, widths or depths, or no limit on peak memory and latency: they could not be decided exactly "
        f"({found})"
    )
    if prices.table is not None:
        allowed += "; a table that was fitted as sums of head parts and ratio parts needs far fewer"
    return TooManyProfiles([FieldProblem(f"/{axis}", f"{len(getattr(space, axis))} choices", allowed)])


def _combinations(prices: Prices, depth: int) -> int:
    combinations: int = (len(prices.space.num_heads) * len(prices.space.mlp_ratio)) ** depth
    return combinations


def _chunks(first: Axis, second: Axis) -> Iterator[tuple[int, int]]:
    """Runs of entries of the first axis, as start and length, of about as many profiles as are priced at once."""
    step = max(1, _CHUNK // len(second))
    for start in range(0, len(first), step):
        yield start, min(step, len(first) - start)
