"""How much work the stages of a search over widths are, see ``workers.stages.estimate``."""

from __future__ import annotations

from search.cost import macs
from workers.stages.estimate import TRAINING, images_of
from workers.stages.search import SearchStage
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.separate import SeparateStage
from workers.stages.slimmable.supernet import SlimmableStage
from workers.stages.slimmable.teacher import taught_network
from workers.stages.slimmable.widths import measured_widths
from workers.stages.teacher import TeacherStage


def width_work(ctx: SlimmableContext) -> dict[str, float]:
    """Multiply-accumulates of each stage that computes; needs the dataset."""
    net, train = ctx.net, len(ctx.dataset.train)
    of_width = {head_dim: macs(net.architecture(head_dim)) for head_dim in measured_widths(net, shared=ctx.is_shared)}
    trained = [of_width[head_dim] for head_dim in net.head_dims]
    images = images_of(ctx.spec.training, train)
    teacher = ctx.spec.teacher
    work = {TeacherStage.name: 0.0}
    if teacher is not None and teacher.train is not None:
        work[TeacherStage.name] = images_of(teacher.train, train) * TRAINING * macs(taught_network(ctx))
    # A teacher from elsewhere is taken to be as large as the whole network.
    teaching = images * macs(net.largest) if teacher is not None else 0.0
    if ctx.is_shared:
        typical = sum(trained) / len(trained)
        step = trained[0] + trained[-1] + min(2, len(trained) - 2) * typical
        work[SlimmableStage.name] = images * TRAINING * step + teaching
    else:
        work[SeparateStage.name] = images * TRAINING * sum(trained) + len(trained) * teaching
    return {**work, SearchStage.name: len(ctx.dataset.val) * sum(of_width.values())}
