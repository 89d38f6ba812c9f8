"""Routes of teachers. Read only: searches make them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from service.auth import JobReader
from service.errors import NotFound
from service.http import StrictRoute
from service.ids import IdKind, format_id, parse_id
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id
from service.services import SessionDep
from service.teachers.repository import TeacherRepository
from service.teachers.schemas import TeacherList, TeacherView

router = APIRouter(prefix="/teachers", tags=["teachers"], route_class=StrictRoute)


@router.get("", responses=problems())
async def list_teachers(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> TeacherList:
    """Teachers from the newest to the oldest."""
    part = Slice.of(await TeacherRepository(session, caller.owner).page(cursor_id(after), limit + 1), limit)
    return TeacherList(data=[TeacherView.of(row) for row in part.rows], has_more=part.has_more, next=part.cursor(by_id))


@router.get("/{teacher_id}", responses=problems(NotFound))
async def get_teacher(
    teacher_id: Annotated[str, Path(description="Id of a teacher, `tch_...`.")], caller: JobReader, session: SessionDep
) -> TeacherView:
    """One teacher."""
    row = await TeacherRepository(session, caller.owner).get(found := parse_id(IdKind.TEACHER, teacher_id))
    if row is None:
        raise NotFound(f"There is no teacher {format_id(IdKind.TEACHER, found)}.")
    return TeacherView.of(row)
