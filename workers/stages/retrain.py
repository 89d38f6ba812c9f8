"""Supervised training of the best-scored candidates, from their slice of the supernet or from scratch."""

from __future__ import annotations

from contextlib import suppress

from timm.models.vision_transformer import VisionTransformer

from models.architecture import Architecture
from models.extract import build_timm, extract_state, load_backbone
from service.jobs.spec import RetrainSpec
from workers.data.dataset import LabelledSet, Labels
from workers.stages.context import BudgetReached, Json
from workers.stages.search_context import SearchContext
from workers.stages.supernet import SUPERNET_FILE
from workers.stages.training import Optim, metrics_every, train
from workers.training.augment import Augmentation
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import TrainingLoop
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.mixing import Mixing
from workers.training.optimizer import build_adamw, layer_rate_scales
from workers.training.randaugment import RandAugment
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.stochastic_depth import StochasticDepth
from workers.training.streams import PathPart, torch_stream
from workers.training.supervised import LabelledBatch, LabelledBatches, Supervised, count_correct

EVAL_BATCH = 256


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
    loop = supervised_loop(network, data, spec, optim, ctx.compute, seed=ctx.seed, stage=stream)
    train(ctx, loop, batch_size=optim.batch_size, state={"networks": done}, part=len(done), parts=total)
    return network


def supervised_loop(
    network: VisionTransformer,
    data: LabelledSet,
    spec: RetrainSpec,
    optim: Optim,
    compute: Compute,
    *,
    seed: int,
    stage: tuple[PathPart, ...],
) -> TrainingLoop[LabelledBatch]:
    """The training of one network by a filled recipe.

    Args:
        network: trained in place, on the device.
        data: to train on.
        spec: the recipe.
        optim: of the same recipe, for these images.
        compute: device and precision.
        seed: of the run.
        stage: names the streams of this training.
    """
    assert spec.layer_decay is not None, "filled by service.jobs.resolve"
    assert spec.min_lr is not None, "filled by service.jobs.resolve"
    assert spec.repeats is not None, "filled by service.jobs.resolve"
    order = BatchOrder(len(data), optim.batch_size, seed, stage, min(spec.repeats, optim.batch_size))
    total_steps = optim.epochs * order.steps_per_epoch
    names = [name for name, _ in network.named_parameters()]
    return TrainingLoop(
        objective=Supervised(
            network,
            label_smoothing=spec.label_smoothing,
            stochastic_depth=StochasticDepth(network, spec.drop_path, seed, stage) if spec.drop_path else None,
        ),
        batches=LabelledBatches(data, order, _augmentation(spec), _mixing(spec), compute),
        optimizer=build_adamw(
            network.named_parameters(),
            weight_decay=spec.weight_decay,
            betas=spec.betas,
            rate_scales=layer_rate_scales(names, len(network.blocks), spec.layer_decay),
        ),
        schedule=WarmupCosine.of_share(optim.lr, optim.warmup_fraction, total_steps, spec.min_lr),
        compute=compute,
        clip_grad=spec.clip_grad,
        metrics_every=metrics_every(total_steps),
    )


def _augmentation(spec: RetrainSpec) -> Augmentation:
    assert spec.max_shift is not None, "filled by service.jobs.resolve"
    assert spec.crop_scale is not None, "filled by service.jobs.resolve"
    assert spec.horizontal_flip is not None, "filled by service.jobs.resolve"
    assert spec.randaugment_ops is not None, "filled by service.jobs.resolve"
    assert spec.randaugment_magnitude is not None, "filled by service.jobs.resolve"
    assert spec.color_jitter is not None, "filled by service.jobs.resolve"
    assert spec.erasing is not None, "filled by service.jobs.resolve"
    return Augmentation(
        max_shift=spec.max_shift,
        crop=RandomCrop(spec.crop_scale, spec.horizontal_flip),
        randaugment=RandAugment(spec.randaugment_ops, spec.randaugment_magnitude, spec.randaugment_std),
        color_jitter=spec.color_jitter,
        erasing=spec.erasing,
    )


def _mixing(spec: RetrainSpec) -> Mixing:
    assert spec.mixup is not None, "filled by service.jobs.resolve"
    assert spec.cutmix is not None, "filled by service.jobs.resolve"
    return Mixing(
        mixup=spec.mixup,
        cutmix=spec.cutmix,
        probability=spec.mix_probability,
        cutmix_share=spec.cutmix_share,
    )


def _fresh(ctx: SearchContext, arch: Architecture, stream: tuple[PathPart, ...]) -> VisionTransformer:
    """The network that training starts from: always a fresh head, and the supernet's slice unless from scratch."""
    network = build_timm(arch, torch_stream(ctx.seed, *stream, "init"))
    if ctx.spec.retrain.mode == "finetune":
        tensors, _ = read_tensors(ctx.path(SUPERNET_FILE))
        load_backbone(network, extract_state(tensors, ctx.space.largest(), arch.with_classes(0)))
    return network
