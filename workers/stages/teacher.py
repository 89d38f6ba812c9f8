"""The first stage of masked pretraining: the frozen teacher."""

from __future__ import annotations

from models.architecture import Architecture
from models.masked import MaskedDecoder
from models.teacher import FrozenTeacher
from search.space import Space
from service.jobs.resolve import teacher_architecture
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.masked import decoder_config, masked_settings, pretrain
from workers.stages.search_context import SearchContext
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.masked import MaskedDistillation
from workers.training.streams import torch_stream

TEACHER_FILE = "teacher.safetensors"

TEACHER_DECODER_FILE = "teacher-decoder.safetensors"
"""Only where the supernet reconstructs what the teacher predicts."""


def load_teacher(ctx: SearchContext) -> FrozenTeacher:
    """The job's teacher, from the file that its stage wrote."""
    arch = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    return FrozenTeacher.load(ctx.path(TEACHER_FILE), arch).to(ctx.compute.device)


def load_teacher_decoder(ctx: SearchContext) -> MaskedDecoder | None:
    """The decoder of the job's teacher; None where nobody asks for its predictions."""
    if ctx.file(TEACHER_DECODER_FILE) is None:
        return None
    arch = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    generator = torch_stream(ctx.seed, TeacherStage.name, "init", "decoder")
    decoder = MaskedDecoder(arch, decoder_config(ctx.spec.teacher.pretrain), generator)
    tensors, _ = read_tensors(ctx.path(TEACHER_DECODER_FILE))
    load_parameters(dict(decoder.named_parameters()), tensors)
    return decoder.to(ctx.compute.device).eval()


class TeacherStage:
    """Pretrains a masked autoencoder on the job's own images, labels unseen, and keeps its encoder as the teacher."""

    name = "teacher"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the teacher's architecture, digest and last losses."""
        arch = teacher_architecture(ctx.spec.teacher.pretrain, ctx.space)
        settings = masked_settings(ctx, ctx.spec.teacher.pretrain, _only(arch), self.name)
        objective = MaskedDistillation(settings, None, ctx.compute)
        metrics = pretrain(ctx, objective, ctx.spec.teacher.pretrain, self.name)
        header = {"architecture": arch.to_json()}
        written = write_tensors(ctx.path(TEACHER_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        if ctx.spec.supernet.recon_target != "pixels":
            assert objective.decoder is not None, "teachers are pretrained by reconstruction"
            ctx.keep(write_tensors(ctx.path(TEACHER_DECODER_FILE), objective.decoder.state_dict(), {}))
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
