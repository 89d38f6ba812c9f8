"""Costs that a limit can be set on, and how they depend on the genes.

Parameters, MACs and bytes of weights are affine in four numbers: a member of width ``d`` costs ``a(d) + b(d) * depth +
c(d) * (sum of head counts) + e(d) * (sum of hidden widths)``.  So members with equal depth, width and *sums* cost the
same, in whatever order the blocks come; :mod:`search.lines` rests on this.  Peak memory and latency depend on the
blocks by more than their sums, but not on their order either: :mod:`search.profiles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from models.architecture import Architecture
from search import cost, memory
from search.latency import MS, LatencyTable
from search.space import Space


class Metric(StrEnum):
    """A cost of the deployed network that is exact and needs no device; latency needs the table of one."""

    PARAMS_M = "params_m"  # parameters in millions
    GMACS = "gmacs"  # multiply-accumulates of one image in 1e9
    WEIGHT_MB = "weight_mb"  # weights as 32-bit floats, in 1e6 bytes
    PEAK_MEM_MB = "peak_mem_mb"  # weights and live tensors of one image, in 1e6 bytes (search.memory)
    LATENCY_MS = "latency_ms"  # of one call, by the table of a device (search.latency)

    @property
    def unit(self) -> int:
        """How many countable things (parameters, MACs, bytes, nanoseconds) make 1.0 of the metric."""
        match self:
            case Metric.PARAMS_M | Metric.WEIGHT_MB | Metric.PEAK_MEM_MB:
                return cost.MILLION
            case Metric.GMACS:
                return cost.GIGA
            case Metric.LATENCY_MS:
                return MS
            case _:
                assert_never(self)

    def count_of(self, arch: Architecture, table: LatencyTable | None = None) -> int:
        """The exact number of countable things, ``unit`` of which make 1.0.

        Raises:
            ValueError: for latency without a table.
            LatencyError: the table has no entry for a part of the network.
        """
        match self:
            case Metric.PARAMS_M:
                return cost.params(arch)
            case Metric.GMACS:
                return cost.macs(arch)
            case Metric.WEIGHT_MB:
                return cost.weight_bytes(arch)
            case Metric.PEAK_MEM_MB:
                return memory.peak_bytes(arch)
            case Metric.LATENCY_MS:
                if table is None:
                    raise ValueError("latency has a price only with the table of a device")
                return table.predict_ns(arch)
            case _:
                assert_never(self)


AFFINE_METRICS = (Metric.PARAMS_M, Metric.GMACS, Metric.WEIGHT_MB)
"""Metrics that depend on the blocks by sums alone."""

FORMULA_METRICS = (*AFFINE_METRICS, Metric.PEAK_MEM_MB)
"""Metrics that need no table."""


def priced_metrics(table: LatencyTable | None) -> tuple[Metric, ...]:
    """The metrics that have a price with this table, or without one."""
    return tuple(Metric) if table is not None else FORMULA_METRICS


def counts_of(arch: Architecture, table: LatencyTable | None = None) -> dict[Metric, int]:
    """Exact counts of all metrics that have a price.

    Raises:
        LatencyError: the table has no entry for a part of the network.
    """
    return {metric: metric.count_of(arch, table) for metric in priced_metrics(table)}


def costs_of(arch: Architecture, table: LatencyTable | None = None) -> dict[str, float]:
    """Costs in the metrics' units, by metric name; see :func:`counts_of`."""
    return {metric.value: count / metric.unit for metric, count in counts_of(arch, table).items()}


@dataclass(frozen=True, slots=True)
class Window:
    """Inclusive bounds on the exact count of a metric; ``None`` leaves a side open."""

    metric: Metric
    low: int | None = None
    high: int | None = None

    def contains(self, count: int) -> bool:
        """True when the count is within the bounds."""
        return (self.low is None or count >= self.low) and (self.high is None or count <= self.high)

    def excess(self, count: int) -> float:
        """How far outside the count is, as a fraction of the bound that it breaks; 0 inside."""
        if self.low is not None and count < self.low:
            return (self.low - count) / self.low
        if self.high is not None and count > self.high:
            return (count - self.high) / max(1, self.high)
        return 0.0


def violation(windows: Iterable[Window], counts: Mapping[Metric, int]) -> float:
    """Sum of the relative excesses over all windows: 0 exactly when every limit is met."""
    return sum(window.excess(counts[window.metric]) for window in windows)


@dataclass(frozen=True, slots=True)
class AffineCost:
    """One metric at one width as a function of depth and of the sums over the blocks."""

    fixed: int
    per_block: int
    per_head: int
    per_hidden: int

    @classmethod
    def of(cls, metric: Metric, space: Space, embed_dim: int, num_classes: int) -> AffineCost:
        """Read the four coefficients off four small networks, so that the formulas are stated only once."""
        one = replace(space.smallest(num_classes), embed_dim=embed_dim, depth=1, num_heads=(1,), mlp_ratio=(1.0,))
        base = metric.count_of(one)
        block = metric.count_of(replace(one, depth=2, num_heads=(1, 1), mlp_ratio=(1.0, 1.0))) - base
        head = metric.count_of(replace(one, num_heads=(2,))) - base
        # A ratio of 1 means embed_dim hidden channels.
        hidden = (metric.count_of(replace(one, mlp_ratio=(2.0,))) - base) // embed_dim
        return cls(
            fixed=base - block,
            per_block=block - head - hidden * embed_dim,
            per_head=head,
            per_hidden=hidden,
        )

    def count(self, depth: int, heads: int, hidden: int) -> int:
        """The exact count for these sums of head counts and of hidden widths."""
        return self.fixed + self.per_block * depth + self.per_head * heads + self.per_hidden * hidden
