"""The members of a space that meet limits: how many there are, the i-th one, a random one, the nearest misses.

All of it is exact and none of it tries members one by one, so a window of a thousandth of the range costs the same
as no limit at all.  Costs do not depend on the order of the blocks.  Where all limits are on costs that depend on sums
over the blocks alone, members are counted by these (:mod:`search.lines`); limits on peak memory or latency need to know
how often each choice occurs (:mod:`search.profiles`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np

from models.architecture import Genotype
from search.latency import LatencyTable
from search.lines import Lines, Slab
from search.metrics import AFFINE_METRICS, Metric, Window, violation
from search.prices import Prices
from search.profiles import Profiles
from search.randomness import randbelow
from search.space import Space


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A member closest to limits that no member meets."""

    genotype: Genotype
    counts: dict[Metric, int]
    violation: float


class _Members(Protocol):
    """Members within limits, in a fixed order."""

    count: int

    def slabs(self) -> Iterator[Slab]: ...

    def member(self, index: int) -> Genotype: ...

    def extremes(self) -> tuple[Genotype, Genotype]: ...

    def nearest(self, k: int) -> list[Genotype]: ...


class FeasibleSet:
    """The members of a space whose deployed cost lies within all windows.

    Args:
        space, windows, num_classes: see below.
        table: of the device whose latency is limited or told.

    Attributes:
        space: the space.
        windows: the limits; of several on one metric all hold.
        num_classes: outputs of the head that costs include.
        prices: of the members.
        count: exact number of members within the limits.

    Raises:
        LatencyError: the table lacks entries for members of the space.
        TooManyProfiles: limits on peak memory or latency, in a space too rich to decide them exactly.
    """

    def __init__(
        self, space: Space, windows: Sequence[Window], num_classes: int, table: LatencyTable | None = None
    ) -> None:
        self.space = space
        self.windows = tuple(windows)
        self.num_classes = num_classes
        self.prices = Prices(space, num_classes, table)
        by_sums = all(window.metric in AFFINE_METRICS for window in self.windows)
        self._members: _Members = Lines(self.prices, windows) if by_sums else Profiles(self.prices, windows)
        self.count = self._members.count
        self._slabs = [slab for slab in self._members.slabs() if slab.count]
        self._slab_weights = [0, *accumulate(slab.count * self._member_weight(slab.depth) for slab in self._slabs)]

    def member(self, index: int) -> Genotype:
        """Member number ``index`` in a fixed order of all ``count`` members.

        Raises:
            IndexError: unless ``0 <= index < count``.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"member of a feasible set: found {index}, allowed is 0 to {self.count - 1}")
        return self._members.member(index)

    def sample(self, rng: np.random.Generator) -> Genotype:
        """Draw as ``Space.sample`` would if it were repeated until the limits are met, in one draw.

        Raises:
            ValueError: when the set is empty (``count == 0``).
        """
        if not self.count:
            raise ValueError(f"no member of space {self.space.name!r} meets the limits, so none can be drawn")
        draw = randbelow(rng, self._slab_weights[-1])
        number = bisect_right(self._slab_weights, draw) - 1
        slab = self._slabs[number]
        offset = (draw - self._slab_weights[number]) // self._member_weight(slab.depth)
        return self._members.member(slab.first + offset)

    @cached_property
    def extremes(self) -> tuple[Genotype, Genotype]:
        """The members with the fewest and with the most parameters; of several, always the same one.

        Raises:
            ValueError: when the set is empty.
        """
        if not self.count:
            raise ValueError(f"no member of space {self.space.name!r} meets the limits, so none is the largest")
        return self._members.extremes()

    def counts(self, genotype: Genotype) -> dict[Metric, int]:
        """Exact counts of all metrics that have a price, for a member of the space, within the limits or not."""
        return self.prices.counts(genotype)

    def meets_limits(self, genotype: Genotype) -> bool:
        """True when a member of the space is within all windows."""
        return all(window.contains(self.prices.count(window.metric, genotype)) for window in self.windows)

    def nearest(self, k: int) -> tuple[NearMiss, ...]:
        """The ``k`` members closest to the limits, best first, of those that cost the same only one.

        The distance is :func:`search.metrics.violation`; for an empty set these are the nearest misses.
        """
        return tuple(self._miss(genotype) for genotype in self._members.nearest(k))

    def _miss(self, genotype: Genotype) -> NearMiss:
        counts = self.counts(genotype)
        return NearMiss(genotype, counts, violation(self.windows, counts))

    def _member_weight(self, depth: int) -> int:
        """Probability of a member of this depth under gene-wise uniform draws, as a multiple of the least one."""
        per_block = len(self.space.num_heads) * len(self.space.mlp_ratio)
        weight: int = per_block ** (self.space.depth[-1] - depth)
        return weight
