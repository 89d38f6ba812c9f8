"""How much work the stages of a search of architectures are; pure arithmetic on a filled spec."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil

from models.architecture import Architecture
from search.cost import macs, params
from search.measures import JUDGED_NETWORKS, Measure
from search.space import Space
from service.forecast.quantity import Work
from service.jobs.resolve import measure_plan, planned_evaluations
from service.jobs.spec import MaskedSpec, OptimSpec, PretrainSpec, SearchSpec, SupernetSpec

TRAINING = 3
"""Passes of a training step: forward, and backward to inputs and to weights."""

PROBED_IMAGES = 1000
"""Labelled images on which the report judges measures, at most."""

_DECODER_MLP_RATIO = 4
_THREE_QUARTERS = 0.75
_EVAL_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFacts:
    """What the work of a search follows from.

    Attributes:
        spec: filled.
        space: that it names.
        teacher: as it looks at the student's images.
        num_classes: 0 when nothing is retrained.
        train: images to train on.
        val: images to rank on.
        holdout: images for the winner.
        feasible: members of the space within the limits.
        adopted: names of stages that are taken over from another job.
    """

    spec: SearchSpec
    space: Space
    teacher: Architecture
    num_classes: int
    train: int
    val: int
    holdout: int
    feasible: int
    adopted: Collection[str] = ()


def search_work(facts: SearchFacts) -> dict[str, Work]:
    """Work by the names of the stages that compute, in their order."""
    work = {
        "teacher": _pretraining(facts),
        "supernet": _supernet(facts),
        "search": _search(facts),
    }
    for stage in facts.adopted:
        work[stage] = Work()
    finalists = facts.spec.retrain.top_k if facts.num_classes else 1
    if facts.num_classes:
        work["retrain"] = _retraining(facts).times(facts.spec.retrain.top_k)
    work["export"] = Work(processes=finalists)
    work["report"] = _report(facts)
    return work


def images_of(spec: OptimSpec, available: int) -> float:
    """How many images a filled training goes through, of so many that there are."""
    return float((spec.epochs or 0) * available)


def steps_of(spec: OptimSpec, available: int) -> float:
    """How many steps a filled training takes."""
    return images_of(spec, available) / min(spec.batch_size or 1, available)


def training(spec: OptimSpec, available: int, image_macs: float, depth: float, weights: float) -> Work:
    """A whole training.

    Args:
        spec: filled.
        available: images that there are.
        image_macs: of one forward pass of one image.
        depth: blocks that a step passes through, over all networks that it trains.
        weights: parameters that the optimizer changes.
    """
    steps = steps_of(spec, available)
    return Work(
        macs=images_of(spec, available) * TRAINING * image_macs,
        passes=steps * TRAINING * depth,
        updates=steps * weights,
    )


def evaluation(images: float, image_macs: float, depth: float, batch_size: int = _EVAL_BATCH) -> Work:
    """Forward passes over images."""
    return Work(macs=images * image_macs, passes=ceil(images / batch_size) * depth)


def _pretraining(facts: SearchFacts) -> Work:
    """Work of pretraining the teacher; one that exists already costs next to nothing."""
    spec: PretrainSpec | None = facts.spec.teacher.pretrain
    if spec is None:
        return Work()
    teacher = facts.teacher
    image_macs = macs(teacher) * _visible_share(spec) + decoder_macs(spec, teacher.num_patches)
    depth = teacher.depth + _decoder_depth(spec)
    crops = images_of(spec, facts.train) * _crop_macs(spec, facts.space)
    return training(spec, facts.train, image_macs, depth, params(teacher)) + Work(macs=crops)


def _supernet(facts: SearchFacts) -> Work:
    spec, images = facts.spec.supernet, images_of(facts.spec.supernet, facts.train)
    students = spec.students or 1
    typical = facts.space.centre()
    decodes = _decoder_depth(spec) if _is_decoding(spec) else 0
    work = training(
        spec,
        facts.train,
        _students_macs(facts),
        students * (typical.depth + decodes),
        params(facts.space.largest()),
    )
    teaching = _teaching_macs(facts)
    if teaching:
        work += Work(macs=images * teaching, passes=steps_of(spec, facts.train) * facts.teacher.depth)
    return work + Work(macs=images * _crop_macs(spec, facts.space))


def _search(facts: SearchFacts) -> Work:
    spec = facts.spec.search
    measures = measure_plan(spec, facts.spec.supernet).every
    if not measures:
        return Work()
    val = min(facts.val, spec.evaluation.images)
    evaluations = planned_evaluations(spec, facts.feasible) * (2 if spec.baseline == "random" else 1)
    typical, seeds = facts.space.centre(), spec.evaluation.mask_seeds
    decodes = Measure.RECONSTRUCTION in measures
    image_macs = macs(typical) * (1 - (spec.evaluation.mask_ratio or 0.0))
    depth = typical.depth + (_decoder_depth(facts.spec.supernet) if decodes else 0)
    if decodes:
        image_macs += decoder_macs(facts.spec.supernet, typical.num_patches)
    one = evaluation(val, image_macs, depth, spec.evaluation.batch_size)
    teacher = evaluation(val, macs(facts.teacher), facts.teacher.depth, spec.evaluation.batch_size)
    return one.times(evaluations * seeds) + teacher.times(seeds)


def _retraining(facts: SearchFacts) -> Work:
    typical = facts.space.centre()
    work = training(facts.spec.retrain, facts.train, macs(typical), typical.depth, params(typical))
    return work + evaluation(facts.val, macs(typical), typical.depth)


def _report(facts: SearchFacts) -> Work:
    """The holdout, and the probe of the first random networks."""
    if not facts.num_classes:
        return Work()
    typical = facts.space.centre()
    judged = min(JUDGED_NETWORKS, facts.spec.search.population, facts.feasible)
    probes = evaluation(min(PROBED_IMAGES, facts.train), macs(typical), typical.depth).times(judged)
    return probes + evaluation(facts.holdout, macs(typical), typical.depth)


def _students_macs(facts: SearchFacts) -> float:
    """Forward passes of all students of a step, of one image."""
    spec, space = facts.spec.supernet, facts.space
    students = spec.students or 1
    encoders = students * macs(space.centre())
    if facts.spec.widths is not None:
        ends = [replace(space.centre(), embed_dim=width) for width in (space.embed_dim[0], space.embed_dim[-1])]
        encoders += sum(map(macs, ends)) - 2 * macs(space.centre())
    elif spec.sampling == "sandwich":
        encoders += macs(space.largest()) + macs(space.smallest()) - 2 * macs(space.centre())
    decoders = students * decoder_macs(spec, space.centre().num_patches) if _is_decoding(spec) else 0.0
    return encoders * _visible_share(spec) + decoders


def _teaching_macs(facts: SearchFacts) -> float:
    """Forward passes of the teacher, of one image: one for all students."""
    spec = facts.spec.supernet
    predicts = spec.recon_target != "pixels"
    # Blocks beyond the one that is compared are not run, unless the teacher's decoder needs them.
    compared = _THREE_QUARTERS if spec.distill.layer == "three_quarter" else 1.0
    seen = 0.0
    if predicts or (spec.distillation and spec.distill.positions != "masked"):
        seen += _visible_share(spec) * (1.0 if predicts else compared)
    if spec.distillation and spec.distill.positions != "visible":
        seen += compared
    pretrain = facts.spec.teacher.pretrain
    decoder = decoder_macs(pretrain, facts.teacher.num_patches) if predicts and pretrain is not None else 0.0
    return seen * macs(facts.teacher) + decoder


def _is_decoding(spec: SupernetSpec) -> bool:
    return spec.reconstruction or (spec.distillation and spec.distill.positions != "visible")


def _visible_share(spec: MaskedSpec) -> float:
    return 1 - (spec.mask_ratio or 0.0)


def decoder_macs(spec: MaskedSpec, patches: int) -> float:
    """Of one image through the decoder, which sees all patches; 0 without one."""
    if spec.decoder is None:
        return 0.0
    width = spec.decoder.embed_dim
    return float(spec.decoder.depth * patches * width * (width * (4 + 2 * _DECODER_MLP_RATIO) + 2 * patches))


def _decoder_depth(spec: MaskedSpec) -> int:
    return 0 if spec.decoder is None else spec.decoder.depth


def _crop_macs(spec: MaskedSpec, space: Space) -> float:
    """Two products with a matrix of resampling weights for each channel; see ``workers.training.crops``."""
    whole = spec.crop_scale == (1.0, 1.0) and not spec.horizontal_flip
    return 0.0 if whole else 2.0 * space.in_chans * space.img_size**3
