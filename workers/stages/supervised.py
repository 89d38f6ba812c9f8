"""Supervised training by a recipe of the spec: what retraining, teachers and slimmable networks share."""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer

from service.jobs.spec import SupervisedSpec
from workers.data.dataset import LabelledSet
from workers.stages.training import Optim, metrics_every
from workers.training.augment import Augmentation
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import TrainingLoop
from workers.training.mixing import Mixing
from workers.training.optimizer import build_adamw, layer_rate_scales
from workers.training.randaugment import RandAugment
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.stochastic_depth import StochasticDepth
from workers.training.streams import PathPart
from workers.training.supervised import ClassTeacher, LabelledBatch, LabelledBatches, Supervised

EVAL_BATCH = 256


def supervised_loop(
    network: VisionTransformer,
    data: LabelledSet,
    spec: SupervisedSpec,
    optim: Optim,
    compute: Compute,
    *,
    seed: int,
    stage: tuple[PathPart, ...],
    layer_decay: float = 1.0,
    teacher: ClassTeacher | None = None,
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
        layer_decay: rate of a block relative to the one above it.
        teacher: whose decisions are learnt beside the labels; None: labels alone.
    """
    assert spec.min_lr is not None, "filled by service.jobs.resolve"
    batches = labelled_batches(data, spec, optim, compute, seed=seed, stage=stage)
    total_steps = optim.epochs * batches.order.steps_per_epoch
    names = [name for name, _ in network.named_parameters()]
    return TrainingLoop(
        objective=Supervised(
            network,
            label_smoothing=spec.label_smoothing,
            stochastic_depth=StochasticDepth(network, spec.drop_path, seed, stage) if spec.drop_path else None,
            teacher=teacher,
        ),
        batches=batches,
        optimizer=build_adamw(
            network.named_parameters(),
            weight_decay=spec.weight_decay,
            betas=spec.betas,
            rate_scales=layer_rate_scales(names, len(network.blocks), layer_decay),
        ),
        schedule=WarmupCosine.of_share(optim.lr, optim.warmup_fraction, total_steps, spec.min_lr),
        compute=compute,
        clip_grad=spec.clip_grad,
        metrics_every=metrics_every(total_steps),
    )


def labelled_batches(
    data: LabelledSet,
    spec: SupervisedSpec,
    optim: Optim,
    compute: Compute,
    *,
    seed: int,
    stage: tuple[PathPart, ...],
) -> LabelledBatches:
    """Augmented and mixed images of a filled recipe; arguments as for :func:`supervised_loop`."""
    assert spec.repeats is not None, "filled by service.jobs.resolve"
    order = BatchOrder(len(data), optim.batch_size, seed, stage, min(spec.repeats, optim.batch_size))
    return LabelledBatches(data, order, _augmentation(spec), _mixing(spec), compute)


def _augmentation(spec: SupervisedSpec) -> Augmentation:
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


def _mixing(spec: SupervisedSpec) -> Mixing:
    assert spec.mixup is not None, "filled by service.jobs.resolve"
    assert spec.cutmix is not None, "filled by service.jobs.resolve"
    return Mixing(
        mixup=spec.mixup,
        cutmix=spec.cutmix,
        probability=spec.mix_probability,
        cutmix_share=spec.cutmix_share,
    )
