"""The scoring engine of a search, from its spec and the files that its earlier stages left."""

from __future__ import annotations

from functools import partial

from models.distill import DistillConfig
from service.jobs.resolve import MeasurePlan, measure_plan
from workers.stages.scoring import MeasureScorer, ScoringSettings, TrainedParts
from workers.stages.search_context import SearchContext
from workers.stages.supernet import distill_config, load_decoder, load_projector, load_supernet
from workers.stages.teacher import load_teacher


def scorer_of(ctx: SearchContext, *, may_split: bool = False) -> MeasureScorer:
    """What measures the candidates of a search. Every process that makes one for a search measures the same.

    Args:
        ctx: after the supernet.
        may_split: measure fewer images at once when memory runs out, which is told of. Only the search itself does: it
            measures what those that help it leave, so that no more numbers than need be are rounded otherwise.
    """
    parts = TrainedParts(supernet=load_supernet(ctx), projector=load_projector(ctx), decoder=load_decoder(ctx))
    images = ctx.dataset.val.first(ctx.spec.search.evaluation.images)
    on_split = partial(_tell_of_split, ctx) if may_split else None
    measures, settings = plan_of(ctx).judged, _settings(ctx)
    return MeasureScorer(parts, load_teacher(ctx), images, measures, settings, ctx.compute, ctx.poll, on_split)


def _tell_of_split(ctx: SearchContext, images: int) -> None:
    ctx.warn(
        "scoring_split",
        f"Scoring {ctx.spec.search.evaluation.batch_size} images at once needs more memory than there is; {images} are "
        "measured at a time. Scores are the same up to rounding.",
    )


def plan_of(ctx: SearchContext) -> MeasurePlan:
    """Which measures are taken of whom."""
    return measure_plan(ctx.spec.search, ctx.spec.supernet)


def _settings(ctx: SearchContext) -> ScoringSettings:
    evaluation = ctx.spec.search.evaluation
    assert evaluation.mask_ratio is not None, "filled by service.jobs.resolve"
    assert evaluation.depths is not None, "filled by service.jobs.resolve"
    assert evaluation.temperature is not None, "filled by service.jobs.resolve"
    return ScoringSettings(
        mask_ratio=evaluation.mask_ratio,
        mask_seeds=evaluation.mask_seeds,
        depths=tuple(evaluation.depths),
        temperature=evaluation.temperature,
        standardise=evaluation.standardise,
        distill=distill_config(ctx.spec.supernet) if ctx.spec.supernet.distillation else DistillConfig(),
        norm_targets=ctx.spec.supernet.norm_targets,
        batch_size=evaluation.batch_size,
        seed=ctx.seed,
        shared_prefixes=evaluation.shared_prefixes,
        shuffled=evaluation.racing is not None,
        teacher_cache=evaluation.teacher_cache,
    )
