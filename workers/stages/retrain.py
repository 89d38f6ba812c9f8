"""Supervised training of the best-scored candidates, from their slice of the supernet or from scratch."""

from __future__ import annotations

from contextlib import suppress

from timm.models.vision_transformer import VisionTransformer

from models.architecture import Architecture
from models.extract import build_timm, extract_state, load_backbone
from workers.data.dataset import LabelledSet, Labels
from workers.stages.context import BudgetReached, Json
from workers.stages.search_context import SearchContext
from workers.stages.supernet import SUPERNET_FILE
from workers.stages.supervised import EVAL_BATCH, supervised_loop
from workers.stages.training import Optim, train
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.streams import PathPart, torch_stream
from workers.training.supervised import count_correct


def retrained_file(n: int) -> str:
    """Name of the file with the weights of candidate ``n`` after training."""
    return f"retrained-{n}.safetensors"


def load_retrained(ctx: SearchContext, n: int, arch: Architecture) -> VisionTransformer:
    """A retrained network, from the file that the stage wrote."""
    network = build_timm(arch)
    tensors, _ = read_tensors(ctx.path(retrained_file(n)))
    load_parameters(dict(network.named_parameters()), tensors)
    return network.eval()


class RetrainStage:
    """Trains the ``top_k`` best-scored candidates one after the other and measures each on the validation part.

    Weights are those after the last step: choosing the best epoch by validation would flatter the figure that the
    winner is chosen by.
    """

    name = "retrain"

    def run(self, ctx: SearchContext) -> Json:
        """Returns validation accuracies in the order of the scores; none without labels or when time was up."""
        labels = ctx.dataset.labels
        if not ctx.classes or labels is None or ctx.budget_reached:
            return {"networks": []}
        chosen = ctx.outputs["search"]["best"]
        networks: list[Json] = list(ctx.state.get("networks", []))
        with suppress(BudgetReached):
            while len(networks) < len(chosen) and not ctx.budget_reached:
                networks.append(_retrain(ctx, labels, chosen, networks))
                ctx.checkpoint({"networks": networks})
        if len(networks) < len(chosen):
            ctx.warn("budget_reached", f"{len(networks)} of {len(chosen)} networks were retrained when time was up")
        return {"networks": networks}


def _retrain(ctx: SearchContext, labels: Labels, chosen: list[Json], done: list[Json]) -> Json:
    """Train and measure the next of the chosen candidates."""
    candidate = chosen[len(done)]
    n = candidate["n"]
    arch = ctx.space.decode(candidate["genotype"], len(ctx.classes))
    if ctx.file(retrained_file(n)) is None:
        network = _train(ctx, labels.of(ctx.dataset.train), n, arch, done, len(chosen))
        ctx.keep(write_tensors(ctx.path(retrained_file(n)), network.state_dict(), {"architecture": arch.to_json()}))
        ctx.checkpoint({"networks": done})
    network = load_retrained(ctx, n, arch).to(ctx.compute.device)
    val = labels.of(ctx.dataset.val)
    correct = count_correct(network, val, ctx.compute, EVAL_BATCH, ctx.poll_to_finish)
    return {"n": n, "score": candidate["score"], "val": correct / len(val), "val_images": len(val)}


def _train(
    ctx: SearchContext, data: LabelledSet, n: int, arch: Architecture, done: list[Json], total: int
) -> VisionTransformer:
    spec = ctx.spec.retrain
    stream: tuple[PathPart, ...] = ("retrain", n)
    network = _fresh(ctx, arch, stream).to(ctx.compute.device)
    optim = Optim.of(ctx, spec, len(data))
    assert spec.layer_decay is not None, "filled by service.jobs.resolve"
    loop = supervised_loop(
        network, data, spec, optim, ctx.compute, seed=ctx.seed, stage=stream, layer_decay=spec.layer_decay
    )
    train(ctx, loop, batch_size=optim.batch_size, state={"networks": done}, part=len(done), parts=total)
    return network


def _fresh(ctx: SearchContext, arch: Architecture, stream: tuple[PathPart, ...]) -> VisionTransformer:
    """The network that training starts from: always a fresh head, and the supernet's slice unless from scratch."""
    network = build_timm(arch, torch_stream(ctx.seed, *stream, "init"))
    if ctx.spec.retrain.mode == "finetune":
        tensors, _ = read_tensors(ctx.path(SUPERNET_FILE))
        load_backbone(network, extract_state(tensors, ctx.space.largest(), arch.with_classes(0)))
    return network
