"""The first stage of masked pretraining: the frozen teacher."""

from __future__ import annotations

from models.architecture import Architecture
from models.teacher import FrozenTeacher
from search.space import Space
from service.jobs.resolve import teacher_architecture
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.masked import masked_objective, pretrain
from workers.stages.search_context import SearchContext
from workers.training.files import write_tensors

TEACHER_FILE = "teacher.safetensors"


def load_teacher(ctx: SearchContext) -> FrozenTeacher:
    """The job's teacher, from the file that its stage wrote."""
    arch = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    return FrozenTeacher.load(ctx.path(TEACHER_FILE), arch).to(ctx.compute.device)


class TeacherStage:
    """Pretrains a masked autoencoder on the job's own images, labels unseen, and keeps its encoder as the teacher."""

    name = "teacher"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the teacher's architecture, digest and last losses."""
        arch = teacher_architecture(ctx.spec.teacher.pretrain, ctx.space)
        objective = masked_objective(ctx, ctx.spec.teacher.pretrain, _only(arch), self.name)
        metrics = pretrain(ctx, objective, ctx.spec.teacher.pretrain, self.name)
        header = {"architecture": arch.to_json()}
        written = write_tensors(ctx.path(TEACHER_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        info = {"architecture": arch.to_json(), "dataset": ctx.start.dataset["digest"], "metrics": metrics}
        name = f"MAE {arch.depth}x{arch.embed_dim} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="teacher", name=name, file=TEACHER_FILE, info=info))
        return {"architecture": arch.to_json(), "digest": written.sha256, "metrics": metrics}


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
