"""The job that registers a teacher: one stage, whose result is a file of weights under timm's names."""

from __future__ import annotations

from pathlib import Path

from service.jobs.spec import TeacherImportSpec
from workers.channel import Channel
from workers.protocol import ArtifactRef, Resource, Result, Start
from workers.stages.context import Context
from workers.stages.teacher import TEACHER_FILE
from workers.teachers.acquire import acquire

STAGE = "import"


def import_teacher_job(start: Start, channel: Channel) -> Result:
    """Read, check and convert the weights that the user named.

    An interrupted import starts again from the beginning; it has nothing to save.

    Raises:
        TeacherInvalid: the weights are no usable Vision Transformer; every key at fault is listed.
        TeacherUnavailable: they cannot be had now.
        StopRequested: when asked to stop.
    """
    spec = TeacherImportSpec.model_validate(start.spec)
    ctx = Context(start, channel)
    ctx.enter(STAGE)
    ctx.poll()
    found = acquire(spec.source, Path(start.import_root) if start.import_root else None)
    ctx.poll()
    name = spec.name or found.name
    if found.licence.commercial_use is False:
        ctx.warn("teacher_licence", f"teacher {name!r} has the licence {found.licence.name}: {found.licence.note}")
    written = found.write(ctx.path(TEACHER_FILE))
    architecture = found.architecture.to_json()
    reference = ctx.reference(TEACHER_FILE, written)
    return Result(
        result={"digest": written.sha256, "kind": found.facts["kind"], "architecture": architecture},
        artifacts=[ArtifactRef(**reference.model_dump(), kind="teacher", media_type="application/octet-stream")],
        teacher=Resource(
            kind="teacher", name=name, file=TEACHER_FILE, info={"architecture": architecture, **found.info}
        ),
    )
