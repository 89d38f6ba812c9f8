"""The first stage of a search: the frozen teacher, wherever it comes from."""

from __future__ import annotations

import shutil
from pathlib import Path

from models.architecture import Architecture
from models.foreign.layout import VitLayout
from models.masked import MaskedDecoder
from models.teacher import FrozenTeacher
from models.teacher_view import ImageForm
from search.space import Space
from service.errors import TeacherUnavailable
from service.jobs.resolve import on_students_grid, teacher_architecture, teacher_notices
from service.jobs.spec import PretrainSpec, TeacherSource
from workers.protocol import TEACHER_INPUT, Resource
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.masked import decoder_config, masked_settings, pretrain
from workers.stages.search_context import SearchContext
from workers.teachers.acquire import acquire, timm_layout
from workers.teachers.hub import find_network
from workers.training.files import describe_file, load_parameters, read_tensors, write_tensors
from workers.training.masked import MaskedDistillation
from workers.training.streams import torch_stream

TEACHER_FILE = "teacher.safetensors"

TEACHER_DECODER_FILE = "teacher-decoder.safetensors"
"""Only where the supernet reconstructs what the teacher predicts."""


def load_teacher(ctx: DeliveryContext, *, headed: bool = False) -> FrozenTeacher:
    """The job's teacher, looking at the student's images, from the file that its stage wrote.

    Args:
        ctx: after the stage.
        headed: with the head that it was trained with.
    """
    known = ctx.outputs[TeacherStage.name]
    student = student_form(ctx)
    # A teacher that was pretrained before this was recorded saw images as the student does.
    own = known.get("preprocessing") or {"mean": student.mean, "std": student.std}
    layout = VitLayout.from_json(known["architecture"], known.get("layout") or {})
    form = ImageForm(
        size=layout.arch.img_size, channels=layout.arch.in_chans, mean=tuple(own["mean"]), std=tuple(own["std"])
    )
    teacher = FrozenTeacher.for_student(
        ctx.path(TEACHER_FILE), layout, form, student, ctx.student.grid_size, headed=headed
    )
    return teacher.to(ctx.compute.device)


def student_form(ctx: DeliveryContext) -> ImageForm:
    """How the job's students take images."""
    preprocessing = ctx.dataset.train.preprocessing
    return ImageForm(
        size=ctx.student.img_size, channels=ctx.student.in_chans, mean=preprocessing.mean, std=preprocessing.std
    )


def taught_architecture(ctx: SearchContext) -> Architecture:
    """The teacher as it looks at the student's images, also before its stage has run.

    Raises:
        TeacherInvalid: timm has no usable network of the name that the spec gives.
        ValidationFailed: the student's grid is too fine for its patches.
    """
    spec, space = ctx.spec.teacher, ctx.space
    known = ctx.outputs.get(TeacherStage.name) or ctx.start.adopted.get(TeacherStage.name) or ctx.start.teacher
    if known:
        own = Architecture.from_json(known["architecture"])
    elif spec.pretrain is not None:
        own = teacher_architecture(spec.pretrain, space)
    else:
        assert spec.timm is not None, "a filled spec names one source"
        own = timm_layout(find_network(spec.timm)).layout.arch
    return on_students_grid(own, space)


def load_teacher_decoder(ctx: SearchContext) -> MaskedDecoder | None:
    """The decoder of the job's teacher; None where nobody asks for its predictions."""
    spec = ctx.spec.teacher.pretrain
    if spec is None or ctx.file(TEACHER_DECODER_FILE) is None:
        return None
    arch = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    generator = torch_stream(ctx.seed, TeacherStage.name, "init", "decoder")
    decoder = MaskedDecoder(arch, decoder_config(spec), generator)
    tensors, _ = read_tensors(ctx.path(TEACHER_DECODER_FILE))
    load_parameters(dict(decoder.named_parameters()), tensors)
    return decoder.to(ctx.compute.device).eval()


class TeacherStage:
    """Pretrains a masked autoencoder on the job's own images, or takes a network that exists already."""

    name = "teacher"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the teacher's architecture, how it takes images, its digest and, when it was trained, last losses.

        Raises:
            TeacherInvalid, TeacherUnavailable: weights from elsewhere are no use or cannot be had.
        """
        spec = ctx.spec.teacher
        if spec.pretrain is not None:
            return self._pretrain(ctx, spec.pretrain)
        if spec.timm is not None:
            return fetch_teacher(ctx, spec.timm)
        return take_teacher(ctx)

    def _pretrain(self, ctx: SearchContext, spec: PretrainSpec) -> Json:
        arch = teacher_architecture(spec, ctx.space)
        objective = MaskedDistillation(masked_settings(ctx, spec, _only(arch), self.name), None, ctx.compute)
        metrics = pretrain(ctx, objective, spec, self.name)
        header = {"architecture": arch.to_json()}
        written = write_tensors(ctx.path(TEACHER_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        if ctx.spec.supernet.recon_target != "pixels":
            assert objective.decoder is not None, "teachers are pretrained by reconstruction"
            ctx.keep(write_tensors(ctx.path(TEACHER_DECODER_FILE), objective.decoder.state_dict(), {}))
        form = student_form(ctx)
        info = {
            "architecture": arch.to_json(),
            "kind": "pretrained",
            "preprocessing": {"mean": list(form.mean), "std": list(form.std)},
            "dataset": ctx.start.dataset["digest"],
            "metrics": metrics,
        }
        name = f"MAE {arch.depth}x{arch.embed_dim} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="teacher", name=name, file=TEACHER_FILE, info=info))
        return {**teacher_facts(name, arch.to_json(), info, written.sha256), "metrics": metrics}


def fetch_teacher(ctx: DeliveryContext, name: str) -> Json:
    """Let one of timm's networks be the job's teacher; returns the outputs of the stage.

    Raises:
        TeacherInvalid, TeacherUnavailable: its weights are no use or cannot be had.
    """
    found = acquire(TeacherSource(timm=name), None)
    for notice in teacher_notices(found.name, found.layout.arch, found.licence.to_json(), ctx.student):
        ctx.warn(notice.code, notice.detail)
    written = found.write(ctx.path(TEACHER_FILE))
    ctx.keep(written)
    architecture = found.architecture.to_json()
    ctx.announce(
        Resource(kind="teacher", name=found.name, file=TEACHER_FILE, info={"architecture": architecture, **found.info})
    )
    return teacher_facts(found.name, architecture, found.info, written.sha256)


def take_teacher(ctx: DeliveryContext) -> Json:
    """The registered teacher becomes a file of the job, which whoever takes over its supernet finds there too.

    Raises:
        TeacherUnavailable: its weights are damaged on this host.
    """
    known = ctx.start.teacher
    [blob] = [ref.path for ref in ctx.start.inputs if ref.name == TEACHER_INPUT]
    shutil.copyfile(blob, ctx.path(TEACHER_FILE))
    written = describe_file(ctx.path(TEACHER_FILE))
    if written.sha256 != known["digest"]:
        Path(blob).unlink(missing_ok=True)  # the next attempt fetches it anew
        raise TeacherUnavailable(f"The weights of teacher {known['id']} are damaged on this host; retry the job.")
    ctx.keep(written)
    facts = teacher_facts(known["name"], known["architecture"], known["info"], written.sha256)
    return {"id": known["id"], **facts}


def teacher_facts(name: str, architecture: Json, info: Json, digest: str) -> Json:
    """What the stages after the teacher's need to know of it."""
    return {
        "name": name,
        "architecture": architecture,
        "layout": info.get("layout"),
        "preprocessing": info.get("preprocessing"),
        "licence": info.get("licence"),
        "digest": digest,
    }


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
