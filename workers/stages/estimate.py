"""How long a search will still take, from the work that is left and the speed so far.

Work is counted in multiply-accumulates of all forward passes, a backward pass counting twice. Stages reach somewhat
different speeds, so early figures are rough; what has been measured replaces what was assumed as the job goes on.
"""

from __future__ import annotations

import time
from dataclasses import replace

from models.architecture import Architecture
from search.constraints import feasible_set
from search.cost import macs
from search.measures import Measure
from search.space import Space
from service.jobs.resolve import measure_plan, planned_evaluations
from service.jobs.spec import MaskedSpec, OptimSpec, PretrainSpec
from workers.stages.search_context import SearchContext
from workers.stages.teacher import taught_architecture

TRAINING = 3
"""Passes of a training step: forward, and backward to inputs and to weights."""

_DECODER_MLP_RATIO = 4
_THREE_QUARTERS = 0.75


def planned_work(ctx: SearchContext) -> dict[str, float]:
    """Multiply-accumulates of each stage that computes; needs the dataset."""
    spec, space = ctx.spec, ctx.space
    teacher = taught_architecture(ctx)
    typical = space.centre()
    train, val = len(ctx.dataset.train), min(len(ctx.dataset.val), spec.search.evaluation.images)
    feasible = feasible_set(space, ctx.constraints, len(ctx.classes)).count
    evaluations = planned_evaluations(spec.search, feasible) * (2 if spec.search.baseline == "random" else 1)
    work = {
        "teacher": _pretraining(spec.teacher.pretrain, teacher, space, train),
        "supernet": images_of(spec.supernet, train)
        * (TRAINING * _students_macs(ctx) + _teaching_macs(ctx, teacher) + _crop_macs(spec.supernet, space)),
        "search": evaluations * val * _measuring_macs(ctx),
    }
    for stage in ctx.start.adopted:
        work[stage] = 0.0
    if ctx.classes:
        work["retrain"] = spec.retrain.top_k * images_of(spec.retrain, train) * TRAINING * macs(typical)
    return work


def _pretraining(spec: PretrainSpec | None, teacher: Architecture, space: Space, images: int) -> float:
    """Work of pretraining the teacher; one that exists already costs next to nothing."""
    if spec is None:
        return 0.0
    own_masks = macs(teacher) * _visible_share(spec)
    decoder = _decoder_macs(spec, teacher.num_patches)
    return images_of(spec, images) * (TRAINING * (own_masks + decoder) + _crop_macs(spec, space))


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


def _students_macs(ctx: SearchContext) -> float:
    """Forward passes of all students of a step, of one image."""
    spec, space = ctx.spec.supernet, ctx.space
    students = spec.students or 1
    encoders = students * macs(space.centre())
    if ctx.spec.widths is not None:
        ends = [replace(space.centre(), embed_dim=width) for width in (space.embed_dim[0], space.embed_dim[-1])]
        encoders += sum(map(macs, ends)) - 2 * macs(space.centre())
    elif spec.sampling == "sandwich":
        encoders += macs(space.largest()) + macs(space.smallest()) - 2 * macs(space.centre())
    decodes = spec.reconstruction or (spec.distillation and spec.distill.positions != "visible")
    decoders = students * _decoder_macs(spec, space.centre().num_patches) if decodes else 0.0
    return encoders * _visible_share(spec) + decoders


def _teaching_macs(ctx: SearchContext, teacher: Architecture) -> float:
    """Forward passes of the teacher, of one image: one for all students."""
    spec = ctx.spec.supernet
    predicts = spec.recon_target != "pixels"
    # Blocks beyond the one that is compared are not run, unless the teacher's decoder needs them.
    compared = _THREE_QUARTERS if spec.distill.layer == "three_quarter" else 1.0
    seen = 0.0
    if predicts or (spec.distillation and spec.distill.positions != "masked"):
        seen += _visible_share(spec) * (1.0 if predicts else compared)
    if spec.distillation and spec.distill.positions != "visible":
        seen += compared
    pretrain = ctx.spec.teacher.pretrain
    decoder = _decoder_macs(pretrain, teacher.num_patches) if predicts and pretrain is not None else 0.0
    return seen * macs(teacher) + decoder


def _measuring_macs(ctx: SearchContext) -> float:
    """Of one image and the typical candidate."""
    search, supernet = ctx.spec.search, ctx.spec.supernet
    measures = measure_plan(search, supernet).every
    if not measures:
        return 0.0
    typical = ctx.space.centre()
    decoder = _decoder_macs(supernet, typical.num_patches) if Measure.RECONSTRUCTION in measures else 0.0
    return search.evaluation.mask_seeds * (macs(typical) * (1 - (search.evaluation.mask_ratio or 0.0)) + decoder)


def images_of(spec: OptimSpec, available: int) -> float:
    """How many images a filled training goes through, of so many that there are."""
    return float((spec.epochs or 0) * available)


def _visible_share(spec: MaskedSpec) -> float:
    return 1 - (spec.mask_ratio or 0.0)


def _decoder_macs(spec: MaskedSpec, patches: int) -> float:
    if spec.decoder is None:
        return 0.0
    width = spec.decoder.embed_dim
    return float(spec.decoder.depth * patches * width * (width * (4 + 2 * _DECODER_MLP_RATIO) + 2 * patches))


def _crop_macs(spec: MaskedSpec, space: Space) -> float:
    """Two products with a matrix of resampling weights for each channel; see ``workers.training.crops``."""
    whole = spec.crop_scale == (1.0, 1.0) and not spec.horizontal_flip
    return 0.0 if whole else 2.0 * space.in_chans * space.img_size**3
