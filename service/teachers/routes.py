"""Routes of teachers. Read only: searches make them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path

from service.auth import JobReader
from service.errors import NotFound
from service.http import StrictRoute
from service.ids import IdKind, format_id, parse_id
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, decode_cursor, encode_cursor
from service.services import SessionDep
from service.teachers.repository import TeacherRepository
from service.teachers.schemas import TeacherList, TeacherView

router = APIRouter(prefix="/teachers", tags=["teachers"], route_class=StrictRoute)


@router.get("", responses=problems())
async def list_teachers(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> TeacherList:
    """Teachers from the newest to the oldest."""
    before = decode_cursor(after, tuple[UUID])[0] if after is not None else None
    part = Slice.of(await TeacherRepository(session, caller.owner).page(before, limit + 1), limit)
    following = encode_cursor(part.rows[-1].id.hex) if part.has_more else None
    return TeacherList(data=[TeacherView.of(row) for row in part.rows], has_more=part.has_more, next=following)


@router.get("/{teacher_id}", responses=problems(NotFound))
async def get_teacher(
    teacher_id: Annotated[str, Path(description="Id of a teacher, `tch_...`.")], caller: JobReader, session: SessionDep
) -> TeacherView:
    """One teacher."""
    row = await TeacherRepository(session, caller.owner).get(found := parse_id(IdKind.TEACHER, teacher_id))
    if row is None:
        raise NotFound(f"There is no teacher {format_id(IdKind.TEACHER, found)}.")
    return TeacherView.of(row)
