"""What the two stages of masked pretraining share: the objective and its training."""

from __future__ import annotations

from models.masked import DecoderConfig
from search.space import Space
from service.jobs.spec import MaskedSpec
from workers.stages.search_context import SearchContext
from workers.stages.training import Optim, metrics_every, train
from workers.training.crops import RandomCrop
from workers.training.engine import TrainingLoop
from workers.training.masked import ImageBatches, MaskedDistillation, MaskedSettings
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine


def masked_settings(ctx: SearchContext, spec: MaskedSpec, space: Space, stage: str) -> MaskedSettings:
    """What teacher and supernet have in common, from a filled spec: a masked autoencoder without a teacher."""
    assert spec.mask_ratio is not None, "filled by service.jobs.resolve"
    return MaskedSettings(
        space=space,
        mask_ratio=spec.mask_ratio,
        decoder=decoder_config(spec),
        norm_targets=spec.norm_targets,
        beta=0.0,
        seed=ctx.seed,
        stage=stage,
    )


def decoder_config(spec: MaskedSpec) -> DecoderConfig:
    """Size of the decoder of a filled spec."""
    size = spec.decoder
    assert size is not None, "filled by service.jobs.resolve"
    return DecoderConfig(dim=size.embed_dim, depth=size.depth, num_heads=size.num_heads)


def pretrain(ctx: SearchContext, objective: MaskedDistillation, spec: MaskedSpec, stage: str) -> dict[str, float]:
    """Train an objective on the unlabelled training images; returns the last metrics."""
    optim = Optim.of(ctx, spec, len(ctx.dataset.train))
    order = BatchOrder(len(ctx.dataset.train), optim.batch_size, ctx.seed, (stage,))
    total_steps = optim.epochs * order.steps_per_epoch
    assert spec.crop_scale is not None, "filled by service.jobs.resolve"
    assert spec.horizontal_flip is not None, "filled by service.jobs.resolve"
    crop = RandomCrop(spec.crop_scale, spec.horizontal_flip)
    loop = TrainingLoop(
        objective=objective,
        batches=ImageBatches(ctx.dataset.train, order, crop, ctx.compute),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=spec.weight_decay, betas=spec.betas),
        schedule=WarmupCosine.of_share(optim.lr, optim.warmup_fraction, total_steps),
        compute=ctx.compute,
        clip_grad=spec.clip_grad,
        metrics_every=metrics_every(total_steps),
    )
    return train(ctx, loop, batch_size=optim.batch_size)
