"""The teacher of a slimmable network: none, one that exists, or one of the same size that is trained here."""

from __future__ import annotations

from dataclasses import replace

from timm.models.vision_transformer import VisionTransformer

from models.architecture import Architecture
from models.classifier import FrozenClassifier
from models.extract import build_timm
from models.foreign.layout import VitLayout
from models.teacher import FrozenTeacher
from service.errors import TeacherInvalid
from service.jobs.resolve import on_students_grid
from service.jobs.spec import SupervisedSpec
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.supervised import EVAL_BATCH, supervised_loop
from workers.stages.teacher import (
    TEACHER_FILE,
    TeacherStage,
    fetch_teacher,
    load_teacher,
    student_form,
    take_teacher,
    teacher_facts,
)
from workers.stages.training import Optim, train
from workers.training.files import write_tensors
from workers.training.streams import torch_stream
from workers.training.supervised import count_correct


def class_teacher(ctx: SlimmableContext) -> FrozenClassifier | None:
    """The teacher whose decisions are learnt; None without one."""
    teacher = ctx.spec.teacher
    if teacher is None or teacher.kind != "logits":
        return None
    return FrozenClassifier.of(load_teacher(ctx, headed=True))


def feature_teacher(ctx: SlimmableContext) -> FrozenTeacher | None:
    """The teacher whose tokens are matched; None without one."""
    teacher = ctx.spec.teacher
    return load_teacher(ctx) if teacher is not None and teacher.kind == "features" else None


class WidthTeacherStage:
    """Trains the teacher on the job's labels, or takes a network that exists already."""

    name = TeacherStage.name

    def run(self, ctx: SlimmableContext) -> Json:
        """Returns what ``workers.stages.teacher.teacher_facts`` says; digest None without a teacher.

        Raises:
            TeacherInvalid, TeacherUnavailable: weights from elsewhere are no use or cannot be had.
            ValidationFailed: the student's grid is too fine for the teacher's patches.
        """
        spec = ctx.spec.teacher
        if spec is None:
            return {"digest": None}
        if spec.train is not None:
            return self._train(ctx, spec.train)
        outputs = take_teacher(ctx) if spec.id is not None else fetch_teacher(ctx, _named(spec.timm))
        _check(ctx, outputs)
        return outputs

    def _train(self, ctx: SlimmableContext, spec: SupervisedSpec) -> Json:
        labels = ctx.dataset.labels
        assert labels is not None, "the data stage has looked"
        arch = taught_network(ctx)
        network: VisionTransformer = build_timm(arch, torch_stream(ctx.seed, self.name, "init"))
        network.to(ctx.compute.device)
        data = labels.of(ctx.dataset.train)
        optim = Optim.of(ctx, spec, len(data))
        loop = supervised_loop(network, data, spec, optim, ctx.compute, seed=ctx.seed, stage=(self.name,))
        metrics = train(ctx, loop, batch_size=optim.batch_size)
        val = labels.of(ctx.dataset.val)
        accuracy = count_correct(network, val, ctx.compute, EVAL_BATCH, ctx.poll) / len(val)
        written = write_tensors(ctx.path(TEACHER_FILE), network.state_dict(), {"architecture": arch.to_json()})
        ctx.keep(written)
        form = student_form(ctx)
        layout = VitLayout(arch=replace(arch, layer_scale=False), layer_scale=arch.layer_scale)
        info = {
            "architecture": layout.arch.to_json(),
            "kind": "supervised",
            "layout": layout.to_json(),
            "preprocessing": {"mean": list(form.mean), "std": list(form.std)},
            "dataset": ctx.start.dataset["digest"],
            "classes": list(ctx.start.dataset["classes"]),
            "metrics": metrics,
            "accuracy": {"val": accuracy},
        }
        name = f"ViT {arch.depth}x{arch.embed_dim} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="teacher", name=name, file=TEACHER_FILE, info=info))
        facts = teacher_facts(name, layout.arch.to_json(), info, written.sha256)
        return {**facts, "metrics": metrics, "accuracy": {"val": accuracy}}


def taught_network(ctx: SlimmableContext) -> Architecture:
    """A teacher that is trained here: as large as the whole network, and with one head (Scala, section 4.1)."""
    return replace(ctx.net.largest, num_classes=len(ctx.start.dataset["classes"]), distilled=False)


def _named(name: str | None) -> str:
    assert name is not None, "a filled spec names one source"
    return name


def _check(ctx: SlimmableContext, outputs: Json) -> None:
    """Refuse a teacher that cannot look at the job's images or tell its classes apart."""
    assert ctx.spec.teacher is not None, "the caller has looked"
    network = Architecture.from_json(outputs["architecture"])
    on_students_grid(network, ctx.student)
    found, wanted = network.num_classes, len(ctx.start.dataset["classes"])
    if ctx.spec.teacher.kind == "logits" and found != wanted:
        head = f"a head for {found} classes" if found else "no head"
        raise TeacherInvalid(
            f"Teacher {outputs['name']!r} has {head}, and the dataset has {wanted} classes; learn its features "
            "(teacher.kind), or take another one."
        )
