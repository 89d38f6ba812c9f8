"""The training of the shared weights of a slimmable network."""

from __future__ import annotations

from models.slimmable import Slimmable
from service.jobs.resolve import labels_after
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.start import load_start
from workers.stages.slimmable.teacher import class_teacher, feature_teacher
from workers.stages.slimmable.weights import OwnWeights, SlicedWeights, WidthWeights
from workers.stages.slimmable.widths import Width
from workers.stages.supernet import SUPERNET_FILE, SupernetStage
from workers.stages.supervised import labelled_batches
from workers.stages.training import Optim, metrics_every, train
from workers.training.engine import TrainingLoop
from workers.training.files import write_tensors
from workers.training.optimizer import build_adamw
from workers.training.schedule import WarmupCosine
from workers.training.slimmable import SlimmableSettings, SlimmableTraining, SubnetTeacher
from workers.training.supervised import LabelledBatch
from workers.training.widths import WidthPlan, WidthSampling


def width_weights(ctx: SlimmableContext) -> WidthWeights:
    """What the training stages have left, by width."""
    if not ctx.is_shared:
        return OwnWeights(ctx.net, ctx.run_dir)
    return SlicedWeights.read(ctx.net, ctx.path(SUPERNET_FILE))


class SlimmableStage:
    """Trains several widths in each step (Scala, Zhang et al. 2024; US-Net, Yu and Huang 2019)."""

    name = SupernetStage.name

    def run(self, ctx: SlimmableContext) -> Json:
        """Returns the digest of the weights and the last losses."""
        labels = ctx.dataset.labels
        assert labels is not None, "refused by service.jobs.resolve"
        data = labels.of(ctx.dataset.train)
        optim = Optim.of(ctx, ctx.spec.training, len(data))
        batches = labelled_batches(data, ctx.spec.training, optim, ctx.compute, seed=ctx.seed, stage=(self.name,))
        steps_per_epoch = batches.order.steps_per_epoch
        objective = SlimmableTraining(
            slimmable_settings(ctx, steps_per_epoch),
            ctx.compute,
            teacher=class_teacher(ctx),
            feature_teacher=feature_teacher(ctx),
        )
        if not ctx.state:  # else a checkpoint has them
            load_start(ctx, objective.supernet)
        loop: TrainingLoop[LabelledBatch] = TrainingLoop(
            objective=objective,
            batches=batches,
            optimizer=build_adamw(
                objective.named_parameters(),
                weight_decay=ctx.spec.training.weight_decay,
                betas=ctx.spec.training.betas,
            ),
            schedule=_schedule(ctx, optim, steps_per_epoch),
            compute=ctx.compute,
            clip_grad=ctx.spec.training.clip_grad,
            metrics_every=metrics_every(optim.epochs * steps_per_epoch),
        )
        metrics = train(ctx, loop, batch_size=optim.batch_size)
        header = {"slimmable": ctx.net.to_json()}
        written = write_tensors(ctx.path(SUPERNET_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        return {"digest": written.sha256, "metrics": metrics}


def announce_supernet(ctx: SlimmableContext, widths: tuple[Width, ...]) -> None:
    """Register the slimmable network, whose widths are measured now."""
    spec = ctx.spec.model_dump(
        mode="json", include={"dataset", "network", "widths", "slicing", "teacher", "training", "init", "warm_start"}
    )
    supernet = ctx.file(SUPERNET_FILE)
    assert supernet is not None, "its stage has kept it"
    info = slimmable_info(
        ctx.net,
        method=ctx.spec.method,
        dataset=ctx.start.dataset["digest"],
        classes=ctx.classes,
        preprocessing=ctx.outputs["data"]["preprocessing"],
        widths=widths,
        digest=supernet.sha256,
    )
    info |= {"spec": spec, "metrics": ctx.outputs[SlimmableStage.name]["metrics"]}
    name = f"{ctx.spec.method} {ctx.net.largest.embed_dim} wide on {ctx.start.dataset['name']}"
    ctx.announce(Resource(kind="supernet", name=name, file=SUPERNET_FILE, info=info))


def slimmable_info(
    net: Slimmable,
    *,
    method: str,
    dataset: str | None,
    classes: tuple[str, ...],
    preprocessing: Json | None,
    widths: tuple[Width, ...],
    digest: str,
) -> Json:
    """What the row of a slimmable supernet keeps.

    Args:
        net: the network.
        method: that trained it.
        dataset: digest of what it was trained on, None where that is not known.
        classes: of its head in order; empty where they are not known, or there is no head.
        preprocessing: how it takes images.
        widths: those that were measured, ascending.
        digest: of its weights.
    """
    return {
        "method": method,
        "space": net.to_json(),
        "dataset": dataset,
        "classes": list(classes),
        "preprocessing": preprocessing,
        "widths": [width.to_json() for width in widths],
        "trained_for": {"head_dims": list(net.head_dims)},
        "files": {SUPERNET_FILE: digest},
    }


_SAMPLING = {"paper": WidthSampling.PAPER, "code": WidthSampling.CODE, "off": WidthSampling.OFF}


def slimmable_settings(ctx: SlimmableContext, steps_per_epoch: int) -> SlimmableSettings:
    """What the filled spec makes of the objective."""
    spec = ctx.spec.training
    assert spec.teacher_of_subnets is not None, "filled by service.jobs.resolve"
    assert spec.early_distillation_after_epochs is not None, "filled by service.jobs.resolve"
    assert spec.full_warm_epochs is not None, "filled by service.jobs.resolve"
    assert spec.kd_weight is not None, "filled by service.jobs.resolve"
    assert spec.cross_entropy is not None, "filled by service.jobs.resolve"
    assert spec.drop_path is not None, "filled by service.jobs.resolve"
    assert spec.off_grid is not None, "filled by service.jobs.resolve"
    assert spec.off_grid_smallest is not None, "filled by service.jobs.resolve"
    labels_epoch = labels_after(spec)
    sampling = WidthSampling.USNET if spec.stable_sampling is None else _SAMPLING[spec.stable_sampling]
    plan = WidthPlan(net=ctx.net, sampling=sampling, off_grid=spec.off_grid, off_grid_smallest=spec.off_grid_smallest)
    return SlimmableSettings(
        plan=plan,
        subnet_teacher=SubnetTeacher(spec.teacher_of_subnets),
        distill_from_step=spec.early_distillation_after_epochs * steps_per_epoch,
        labels_from_step=None if labels_epoch is None else labels_epoch * steps_per_epoch,
        cross_entropy=spec.cross_entropy,
        kd_weight=spec.kd_weight,
        label_smoothing=spec.label_smoothing,
        full_only_steps=spec.full_warm_epochs * steps_per_epoch,
        drop_path=spec.drop_path,
        seed=ctx.seed,
        stage=(SlimmableStage.name,),
    )


def _schedule(ctx: SlimmableContext, optim: Optim, steps_per_epoch: int) -> WarmupCosine:
    spec = ctx.spec.training
    assert spec.min_lr is not None, "filled by service.jobs.resolve"
    assert spec.full_warm_epochs is not None, "filled by service.jobs.resolve"
    assert spec.full_warm_factor is not None, "filled by service.jobs.resolve"
    total_steps = optim.epochs * steps_per_epoch
    return WarmupCosine(
        peak=optim.lr,
        warmup_steps=round(optim.warmup_fraction * total_steps),
        total_steps=total_steps,
        floor=spec.min_lr,
        slow_steps=spec.full_warm_epochs * steps_per_epoch,
        slow_factor=spec.full_warm_factor,
    )
