"""Routes of teachers: those that searches have pretrained, and those that were registered."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse

from service.auth import JobReader, JobWriter
from service.errors import IdempotencyInProgress, IdempotencyKeyReuse, NotFound, TeacherInvalid
from service.http import StrictRoute, url
from service.idempotency import OnceDep, json_response
from service.ids import IdKind, format_id, parse_id
from service.jobs.schemas import JobView
from service.jobs.service import show_job
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id
from service.services import ServicesDep, SessionDep
from service.teachers.repository import TeacherRepository
from service.teachers.schemas import NewTeacher, TeacherList, TeacherView
from service.teachers.service import start_import

router = APIRouter(prefix="/teachers", tags=["teachers"], route_class=StrictRoute)

_CREATED: Responses = {
    202: {
        "description": "The registration is queued.",
        "headers": {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}},
    },
    **problems(TeacherInvalid, IdempotencyInProgress, IdempotencyKeyReuse, body=True),
}


@router.get("", responses=problems())
async def list_teachers(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> TeacherList:
    """Teachers from the newest to the oldest."""
    part = Slice.of(await TeacherRepository(session, caller.owner).page(cursor_id(after), limit + 1), limit)
    return TeacherList(data=[TeacherView.of(row) for row in part.rows], has_more=part.has_more, next=part.cursor(by_id))


@router.post("", status_code=202, response_model=JobView, responses=_CREATED)
async def create_teacher(
    request: Request, new: NewTeacher, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Register a teacher by the name of a timm network, or from a file below the server's import root.

    The answer is the job that reads the weights; `result.teacher` is the id once it has succeeded.
    """

    async def act() -> JSONResponse:
        job = await start_import(session, caller.owner, new, parts.settings.import_root)
        view = await show_job(session, caller.owner, job, parts.settings.lease_s)
        return json_response(view, 202, {"Location": url(request, f"/jobs/{view.id}")})

    return await once.perform(session, act)


@router.get("/{teacher_id}", responses=problems(NotFound))
async def get_teacher(
    teacher_id: Annotated[str, Path(description="Id of a teacher, `tch_...`.")], caller: JobReader, session: SessionDep
) -> TeacherView:
    """One teacher."""
    row = await TeacherRepository(session, caller.owner).get(found := parse_id(IdKind.TEACHER, teacher_id))
    if row is None:
        raise NotFound(f"There is no teacher {format_id(IdKind.TEACHER, found)}.")
    return TeacherView.of(row)
