"""Shards of a population: made, measured, and put together again to the same bits as undivided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from models.architecture import Architecture
from search.measures import Measure
from search.prefixes import path_of
from search.shards import plan_shards
from search.space import Space
from workers.shard_messages import MOST_MEMBERS, ShardOrder, ShardResult
from workers.stages.scoring import BatchSums, Measures, MeasureScorer

_MOST_DIVIDED = 20_000
"""Batches of a candidate that may be measured apart: the sums of each one are sent."""


def divide(
    archs: Sequence[Architecture],
    wanted: Sequence[Sequence[Measure]],
    *,
    batches: int,
    hands: int,
    first: int,
) -> list[tuple[ShardOrder, tuple[int, ...]]]:
    """Orders for shards of a population, the longest first, each with the positions of its candidates.

    Args:
        archs: candidates.
        wanted: measures of each; at least one.
        batches: of images.
        hands: how many can measure at once.
        first: number of the first order.
    """
    # The effective rank is no sum over batches; whoever measures it must see all of them.
    divisible = batches <= _MOST_DIVIDED and not any(Measure.EFFECTIVE_RANK in names for names in wanted)
    ranges = batches if divisible else 1
    shards = plan_shards([path_of(arch) for arch in archs], ranges, hands, MOST_MEMBERS)
    orders: list[tuple[ShardOrder, tuple[int, ...]]] = []
    for n, shard in enumerate(sorted(shards, key=lambda shard: -shard.steps), first):
        order = ShardOrder(
            n=n,
            genotypes=[list(archs[i].genotype) for i in shard.members],
            measures=[[measure.value for measure in wanted[i]] for i in shard.members],
            batches=None if shard.batches == (0, ranges) else shard.batches,
        )
        orders.append((order, shard.members))
    return orders


class ShardMeter:
    """Measures shards.

    Args:
        scorer: of the search.
        space: of the search, which reads genotypes.
    """

    def __init__(self, scorer: MeasureScorer, space: Space) -> None:
        self._scorer = scorer
        self._space = space

    def measure(self, order: ShardOrder, poll: Callable[[], None]) -> ShardResult:
        """What the order asks for; ``poll`` is called time and again, and may raise to stop."""
        archs = [self._space.decode(genotype) for genotype in order.genotypes]
        wanted = [[Measure(name) for name in names] for names in order.measures]
        if order.batches is None:
            return ShardResult(n=order.n, measures=self._scorer.score_all(archs, wanted, poll))
        sums = self._scorer.sums(archs, wanted, order.batches, poll)
        return ShardResult(n=order.n, sums=[[[*row] for row in rows] for rows in sums])

    def join(
        self,
        wanted: Sequence[Sequence[Measure]],
        orders: Sequence[tuple[ShardOrder, tuple[int, ...]]],
        results: Mapping[int, ShardResult],
    ) -> list[Measures]:
        """The measures of each candidate, from the results of all orders by number."""
        found: list[Measures] = [{} for _ in wanted]
        parts: dict[int, list[tuple[int, BatchSums]]] = {}
        for order, members in orders:
            result = results[order.n]
            for k, i in enumerate(members):
                if result.measures is not None:
                    found[i] = result.measures[k]
                else:
                    assert result.sums is not None, "a result has measures or sums"
                    assert order.batches is not None, "only a part of the batches gives sums"
                    parts.setdefault(i, []).append((order.batches[0], _numbers(result.sums[k])))
        for i, of_batches in parts.items():
            rows = [row for _, sums in sorted(of_batches) for row in sums]
            found[i] = self._scorer.from_sums(wanted[i], rows)
        return found


def _numbers(sums: Sequence[Sequence[float | None]]) -> BatchSums:
    return [[math.nan if value is None else value for value in row] for row in sums]
