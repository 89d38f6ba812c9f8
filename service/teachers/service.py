"""What can be done with teachers: find the one that a search names, register one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Job, JobKind
from service.errors import ErrorItem, ValidationFailed, shortened
from service.ids import BadId, IdKind, format_id, parse_id
from service.imports import confined_path, name_of
from service.jobs import transitions
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.spec import TeacherImportSpec, TeacherSource
from service.jobs.values import NewJob
from service.teachers.files import check_file
from service.teachers.info import TeacherInfo
from service.teachers.repository import TeacherRepository

# As many ids as help; a user with more teachers looks them up.
_NAMED = 20


async def find_teacher(session: AsyncSession, owner: str, reference: str, pointer: str) -> TeacherInfo:
    """The teacher that a search names at ``pointer``.

    Raises:
        ValidationFailed: no such teacher.
    """
    teachers = TeacherRepository(session, owner)
    try:
        row = await teachers.get(parse_id(IdKind.TEACHER, reference))
    except BadId:
        row = None
    if row is None:
        allowed = [format_id(IdKind.TEACHER, known.id) for known in await teachers.page(None, _NAMED)]
        detail = f"there is no teacher {shortened(reference)!r}; name one of GET /teachers by its id"
        raise ValidationFailed(f"{pointer}: {detail}.", errors=[ErrorItem(pointer, "unknown_teacher", detail, allowed)])
    return TeacherInfo.from_row(row)


async def start_import(session: AsyncSession, owner: str, new: TeacherImportSpec, import_root: Path | None) -> Job:
    """Add the job that registers a teacher. The caller commits.

    Raises:
        ValidationFailed: the path is not a file below the import root.
        TeacherInvalid: the file's header tells already that it cannot be a teacher.
    """
    source = new.source
    if source.path is not None:
        source = await asyncio.to_thread(_checked, source, source.path, import_root)
    name = new.name or source.timm or name_of(source.path or "")
    spec = TeacherImportSpec(name=name, source=source)
    request = NewJob(
        owner=owner,
        kind=JobKind.TEACHER_IMPORT,
        name=f"teacher {name}",
        spec=spec.model_dump(mode="json"),
        queue=DEFAULT_QUEUE,
        seed=0,
    )
    return await session.run_sync(transitions.enqueue, request)


def _checked(source: TeacherSource, path: str, import_root: Path | None) -> TeacherSource:
    relative = confined_path(path, import_root)
    assert import_root is not None, "confined_path refuses without a root"
    check_file(import_root / relative, source)
    return source.model_copy(update={"path": relative})
