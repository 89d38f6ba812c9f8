"""How much work the stages of a search over widths are; see ``service.forecast.work``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from models.architecture import Architecture
from models.slimmable import Slimmable
from search.cost import macs, params
from service.forecast.quantity import Work
from service.forecast.work import evaluation, images_of, steps_of, training
from service.jobs.spec import SlimmableSpec

_STEP_BETWEEN = 2
"""Widths between the smallest and the whole that a step trains (Zhang et al. 2024, section 4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthFacts:
    """What the work of a search over widths follows from.

    Attributes:
        spec: filled.
        net: that it names, with its head.
        measured: widths of a head that are measured.
        teacher: the network that is trained as a teacher; None when none is.
        train: images to train on.
        val: images to measure on.
        holdout: images for the winner.
        adopted: names of stages that are taken over from another job.
    """

    spec: SlimmableSpec
    net: Slimmable
    measured: Sequence[int]
    teacher: Architecture | None
    train: int
    val: int
    holdout: int
    adopted: Collection[str] = ()


def width_work(facts: WidthFacts) -> dict[str, Work]:
    """Work by the names of the stages that compute, in their order."""
    net, spec, depth = facts.net, facts.spec.training, facts.net.largest.depth
    of_width = {head_dim: macs(net.architecture(head_dim)) for head_dim in facts.measured}
    trained = [macs(net.architecture(head_dim)) for head_dim in net.head_dims]
    work = {"teacher": Work()}
    if facts.teacher is not None and facts.spec.teacher is not None and facts.spec.teacher.train is not None:
        teacher = facts.teacher
        work["teacher"] = training(facts.spec.teacher.train, facts.train, macs(teacher), teacher.depth, params(teacher))
    # A teacher from elsewhere is taken to be as large as the whole network.
    teaching = Work()
    if facts.spec.teacher is not None:
        steps = steps_of(spec, facts.train)
        teaching = Work(macs=images_of(spec, facts.train) * macs(net.largest), passes=steps * depth)
    if facts.spec.method == "separate":
        work["separate"] = Work()
        for head_dim in net.head_dims:
            arch = net.architecture(head_dim)
            work["separate"] += training(spec, facts.train, macs(arch), depth, params(arch)) + teaching
    else:
        between = min(_STEP_BETWEEN, len(trained) - 2)
        step = trained[0] + trained[-1] + between * sum(trained) / len(trained)
        work["supernet"] = training(spec, facts.train, step, (2 + between) * depth, params(net.largest)) + teaching
    for stage in facts.adopted:
        work[stage] = Work()
    work["search"] = Work()
    for one in of_width.values():
        work["search"] += evaluation(facts.val, one, depth)
    work["export"] = Work(processes=facts.spec.export.top_k)
    work["report"] = evaluation(facts.holdout, macs(net.largest), depth)
    return work
