"""How much work the stages of a search over widths are, see ``workers.stages.estimate``."""

from __future__ import annotations

from search.widths import measured_widths
from service.forecast.widths import WidthFacts, width_work
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.teacher import taught_network


def planned_work(ctx: SlimmableContext) -> dict[str, float]:
    """Multiply-accumulates of each stage that computes; needs the dataset."""
    teacher = ctx.spec.teacher
    facts = WidthFacts(
        spec=ctx.spec,
        net=ctx.net,
        measured=measured_widths(ctx.net, shared=ctx.is_shared),
        teacher=taught_network(ctx) if teacher is not None and teacher.train is not None else None,
        train=len(ctx.dataset.train),
        val=len(ctx.dataset.val),
        holdout=len(ctx.dataset.holdout),
        adopted=tuple(ctx.start.adopted),
    )
    return {stage: work.macs for stage, work in width_work(facts).items() if work.macs}
