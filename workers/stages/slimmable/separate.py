"""Separate training: one network for each width, the baseline that slimmable networks are measured against."""

from __future__ import annotations

from models.extract import build_timm
from workers.data.dataset import LabelledSet
from workers.stages.context import BudgetReached, Json
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.teacher import class_teacher
from workers.stages.slimmable.weights import width_file
from workers.stages.supervised import supervised_loop
from workers.stages.training import Optim, train
from workers.training.files import write_tensors
from workers.training.streams import PathPart, torch_stream


class SeparateStage:
    """Trains the widths one after the other, the whole network first; each has streams of its own.

    So a width comes out the same whichever others are trained, and whatever was interrupted.
    """

    name = "separate"

    def run(self, ctx: SlimmableContext) -> Json:
        """Returns digest and last losses of every width that was trained before time was up."""
        labels = ctx.dataset.labels
        assert labels is not None, "the data stage has looked"
        data = labels.of(ctx.dataset.train)
        wanted = ctx.net.head_dims[::-1]
        networks: list[Json] = list(ctx.state.get("networks", []))
        try:
            while len(networks) < len(wanted):
                networks.append(self._train(ctx, data, wanted[len(networks)], networks, len(wanted)))
                ctx.checkpoint({"networks": networks})
        except BudgetReached:
            if not networks:
                raise
            ctx.warn("budget_reached", f"{len(networks)} of {len(wanted)} widths were trained when time was up")
        return {"networks": networks}

    def _train(self, ctx: SlimmableContext, data: LabelledSet, head_dim: int, done: list[Json], total: int) -> Json:
        stream: tuple[PathPart, ...] = (self.name, head_dim)
        arch = ctx.net.architecture(head_dim)
        network = build_timm(arch, torch_stream(ctx.seed, *stream, "init")).to(ctx.compute.device)
        optim = Optim.of(ctx, ctx.spec.training, len(data))
        loop = supervised_loop(
            network,
            data,
            ctx.spec.training,
            optim,
            ctx.compute,
            seed=ctx.seed,
            stage=stream,
            teacher=class_teacher(ctx),
        )
        metrics = train(ctx, loop, batch_size=optim.batch_size, state={"networks": done}, part=len(done), parts=total)
        header = {"architecture": arch.to_json()}
        written = write_tensors(ctx.path(width_file(head_dim)), network.state_dict(), header)
        ctx.keep(written)
        return {"head_dim": head_dim, "digest": written.sha256, "metrics": metrics}
