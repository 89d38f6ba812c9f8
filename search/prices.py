"""Costs of the members of one space, read off their genes without building a record for each."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from models.architecture import Genotype
from search.latency import LatencyError, LatencyTable
from search.memory import live_bytes
from search.metrics import AFFINE_METRICS, AffineCost, Metric, priced_metrics
from search.space import Space


class Prices:
    """What members of a space cost with the head that they are deployed with.

    Attributes:
        space: the space.
        num_classes: outputs of the head.
        table: of the device whose latency counts; None: latency has no price.
        metrics: that have a price.
        affine: coefficients of the metrics that are affine, by metric and width.
        hidden_of: hidden width of an MLP, by width and ratio.

    Raises:
        LatencyError: the table lacks entries for members of the space; pointers name its axes.
    """

    def __init__(self, space: Space, num_classes: int, table: LatencyTable | None = None) -> None:
        if table is not None and (gaps := table.gaps(space, num_classes)):
            raise LatencyError(gaps)
        self.space = space
        self.num_classes = num_classes
        self.table = table
        self.metrics = priced_metrics(table)
        self.affine, self.hidden_of = _affine(space, num_classes)

    def live_of_heads(self, width: int, depth: int, heads: int) -> int:
        """Most bytes beside the weights, as far as head counts decide; see :func:`search.memory.live_bytes`.

        Of a network it is the greater of this, for its largest head count, and of :meth:`live_of_ratio`.
        """
        return _live_bytes(self.space, self.num_classes, width, depth > 1, heads, self.space.mlp_ratio[0])

    def live_of_ratio(self, width: int, depth: int, ratio: float) -> int:
        """Most bytes beside the weights, as far as MLP ratios decide."""
        return _live_bytes(self.space, self.num_classes, width, depth > 1, self.space.num_heads[0], ratio)

    def counts(self, genotype: Genotype) -> dict[Metric, int]:
        """Exact counts of all metrics for a member of the space."""
        return {metric: self.count(metric, genotype) for metric in self.metrics}

    def count(self, metric: Metric, genotype: Genotype) -> int:
        """The exact count of one metric for a member of the space."""
        depth, width = int(genotype[0]), int(genotype[-1])
        ratios, heads = genotype[1 : 1 + depth], genotype[1 + depth : -1]
        if metric is Metric.LATENCY_MS:
            assert self.table is not None, "latency has a price only with a table"
            blocks = zip(heads, ratios, strict=True)
            return self.table.fixed_ns[width] + sum(self.table.block_ns[width, int(h), r] for h, r in blocks)
        hidden_of = self.hidden_of[width]
        sums = (depth, int(sum(heads)), sum(hidden_of[ratio] for ratio in ratios))
        if metric is Metric.PEAK_MEM_MB:
            live = max(self.live_of_heads(width, depth, int(max(heads))), self.live_of_ratio(width, depth, max(ratios)))
            return self.affine[Metric.WEIGHT_MB, width].count(*sums) + live
        return self.affine[metric, width].count(*sums)


@lru_cache(maxsize=16)  # asked for again with every other set of limits
def _affine(space: Space, num_classes: int) -> tuple[dict[tuple[Metric, int], AffineCost], dict[int, dict[float, int]]]:
    affine = {
        (metric, width): AffineCost.of(metric, space, width, num_classes)
        for metric in AFFINE_METRICS
        for width in space.embed_dim
    }
    return affine, {
        width: dict(zip(space.mlp_ratio, space.hidden_dims(width), strict=True)) for width in space.embed_dim
    }


@lru_cache(maxsize=4096)
def _live_bytes(space: Space, num_classes: int, width: int, several: bool, heads: int, ratio: float) -> int:
    """Of a network of equal blocks; from two on their number makes no difference."""
    blocks = 2 if several else 1
    smallest = space.smallest(num_classes)
    return live_bytes(
        replace(smallest, embed_dim=width, depth=blocks, num_heads=(heads,) * blocks, mlp_ratio=(ratio,) * blocks)
    )
