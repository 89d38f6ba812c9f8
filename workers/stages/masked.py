"""The two stages of masked pretraining: the teacher, and the supernet that learns from it."""

from __future__ import annotations

from models.architecture import Architecture
from models.distill import FeatureProjector
from models.masked import DecoderConfig
from models.teacher import FrozenTeacher
from search.space import Space
from service.jobs.resolve import teacher_architecture
from service.jobs.spec import MaskedSpec
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.search_context import SearchContext
from workers.stages.training import Optim, metrics_every, train
from workers.training.engine import TrainingLoop
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.masked import ImageBatches, MaskedDistillation, MaskedSettings
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.streams import torch_stream

TEACHER_FILE = "teacher.safetensors"
SUPERNET_FILE = "supernet.safetensors"
PROJECTOR_FILE = "projector.safetensors"
"""The map from student tokens to the teacher's, which distillation trains; there is none without it."""


def load_teacher(ctx: SearchContext) -> FrozenTeacher:
    """The job's teacher, from the file that its stage wrote."""
    arch = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    return FrozenTeacher.load(ctx.path(TEACHER_FILE), arch).to(ctx.compute.device)


def load_projector(ctx: SearchContext) -> FeatureProjector | None:
    """The job's projector; None when its supernet learned without a teacher."""
    if ctx.file(PROJECTOR_FILE) is None:
        return None
    teacher = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    generator = torch_stream(ctx.seed, SupernetStage.name, "init", "projector")
    projector = FeatureProjector(ctx.space.largest().embed_dim, teacher.embed_dim, generator)
    tensors, _ = read_tensors(ctx.path(PROJECTOR_FILE))
    load_parameters(dict(projector.named_parameters()), tensors)
    return projector.to(ctx.compute.device)


class TeacherStage:
    """Pretrains a masked autoencoder on the job's own images, labels unseen, and keeps its encoder as the teacher."""

    name = "teacher"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the teacher's architecture, digest and last losses."""
        arch = teacher_architecture(ctx.spec.teacher.pretrain, ctx.space)
        objective = _objective(ctx, ctx.spec.teacher.pretrain, _only(arch), self.name)
        metrics = _pretrain(ctx, objective, ctx.spec.teacher.pretrain, self.name)
        header = {"architecture": arch.to_json()}
        written = write_tensors(ctx.path(TEACHER_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        info = {"architecture": arch.to_json(), "dataset": ctx.start.dataset["digest"], "metrics": metrics}
        name = f"MAE {arch.depth}x{arch.embed_dim} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="teacher", name=name, file=TEACHER_FILE, info=info))
        return {"architecture": arch.to_json(), "digest": written.sha256, "metrics": metrics}


class SupernetStage:
    """Trains the shared weights of the space by masked reconstruction and distillation from the teacher."""

    name = "supernet"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the supernet's digest and last losses."""
        spec = ctx.spec.supernet
        teacher = load_teacher(ctx) if spec.distillation else None
        objective = _objective(
            ctx, spec, ctx.space, self.name, teacher=teacher, beta=spec.beta, reconstruction=spec.reconstruction
        )
        metrics = _pretrain(ctx, objective, spec, self.name)
        header = {"architecture": ctx.space.largest().to_json()}
        written = write_tensors(ctx.path(SUPERNET_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        if objective.projector is not None:
            ctx.keep(write_tensors(ctx.path(PROJECTOR_FILE), objective.projector.state_dict(), {}))
        info = {
            "method": ctx.spec.method,
            "space": ctx.space.to_json(),
            "dataset": ctx.start.dataset["digest"],
            "metrics": metrics,
        }
        name = f"{ctx.space.name} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="supernet", name=name, file=SUPERNET_FILE, info=info))
        return {"digest": written.sha256, "metrics": metrics}


def _objective(
    ctx: SearchContext,
    spec: MaskedSpec,
    space: Space,
    stage: str,
    *,
    teacher: FrozenTeacher | None = None,
    beta: float = 0.0,
    reconstruction: bool = True,
) -> MaskedDistillation:
    assert spec.decoder is not None, "filled by service.jobs.resolve"
    assert spec.mask_ratio is not None, "filled by service.jobs.resolve"
    size = spec.decoder
    decoder = DecoderConfig(dim=size.embed_dim, depth=size.depth, num_heads=size.num_heads)
    settings = MaskedSettings(
        space=space,
        mask_ratio=spec.mask_ratio,
        decoder=decoder if reconstruction else None,
        norm_targets=spec.norm_targets,
        beta=beta,
        seed=ctx.seed,
        stage=stage,
    )
    return MaskedDistillation(settings, teacher, ctx.compute)


def _pretrain(ctx: SearchContext, objective: MaskedDistillation, spec: MaskedSpec, stage: str) -> dict[str, float]:
    optim = Optim.of(ctx, spec, len(ctx.dataset.train))
    order = BatchOrder(len(ctx.dataset.train), optim.batch_size, ctx.seed, (stage,))
    total_steps = optim.epochs * order.steps_per_epoch
    loop = TrainingLoop(
        objective=objective,
        batches=ImageBatches(ctx.dataset.train, order, ctx.compute),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=spec.weight_decay, betas=spec.betas),
        schedule=WarmupCosine.of_share(optim.lr, spec.warmup_fraction, total_steps),
        compute=ctx.compute,
        clip_grad=spec.clip_grad,
        metrics_every=metrics_every(total_steps),
    )
    return train(ctx, loop, batch_size=optim.batch_size)


def _only(arch: Architecture) -> Space:
    """The space whose one member is this uniform architecture."""
    return Space(
        name="teacher",
        embed_dim=(arch.embed_dim,),
        depth=(arch.depth,),
        num_heads=(arch.num_heads[0],),
        mlp_ratio=(arch.mlp_ratio[0],),
        head_dim=arch.head_dim,
        img_size=arch.img_size,
        patch_size=arch.patch_size,
        in_chans=arch.in_chans,
        pool=arch.pool,
        norm_eps=arch.norm_eps,
    )
