"""How long a search will still take, from the work that is left and the speed so far.

Work is counted in multiply-accumulates (:mod:`service.forecast.work`). Stages reach somewhat different speeds, so early
figures are rough; what has been measured replaces what was assumed as the job goes on.
"""

from __future__ import annotations

import time

from search.constraints import feasible_set
from service.forecast.work import SearchFacts, search_work
from workers.stages.search_context import SearchContext
from workers.stages.teacher import taught_architecture


def planned_work(ctx: SearchContext) -> dict[str, float]:
    """Multiply-accumulates of each stage that computes; needs the dataset."""
    facts = SearchFacts(
        spec=ctx.spec,
        space=ctx.space,
        teacher=taught_architecture(ctx),
        num_classes=len(ctx.classes),
        train=len(ctx.dataset.train),
        val=len(ctx.dataset.val),
        holdout=len(ctx.dataset.holdout),
        feasible=feasible_set(ctx.space, ctx.constraints, len(ctx.classes), ctx.table).count,
        adopted=tuple(ctx.start.adopted),
    )
    return {stage: work.macs for stage, work in search_work(facts).items() if work.macs or stage in facts.adopted}


class Estimator:
    """Turns progress into seconds that are left.

    Args:
        work: by stage, in the order in which they run.
    """

    def __init__(self, work: dict[str, float]) -> None:
        self._work = work
        self._stage: str | None = None
        self._began_at = self._began_fraction = 0.0
        self._done_work = self._done_s = 0.0

    def seconds_left(self, stage: str, fraction: float) -> float | None:
        """Seconds left of the whole job when ``stage`` is this far; None while nothing was measured."""
        if stage != self._stage:
            self._stage, self._began_at, self._began_fraction = stage, time.monotonic(), fraction
        here = self._work.get(stage, 0.0)
        done = self._done_work + here * (fraction - self._began_fraction)
        seconds = self._done_s + time.monotonic() - self._began_at
        if fraction >= 1 and here:
            self._done_work, self._done_s, self._stage = done, seconds, None
        if done <= 0 or seconds <= 0:
            return None
        later = list(self._work)
        after = later[later.index(stage) + 1 :] if stage in self._work else []
        left = here * (1 - fraction) + sum(self._work[name] for name in after)
        return left * seconds / done
