"""Routes of supernets. Read only: searches make them."""

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
from service.supernets.repository import SupernetRepository
from service.supernets.schemas import SupernetList, SupernetView

router = APIRouter(prefix="/supernets", tags=["supernets"], route_class=StrictRoute)


@router.get("", responses=problems())
async def list_supernets(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> SupernetList:
    """Supernets from the newest to the oldest."""
    part = Slice.of(await SupernetRepository(session, caller.owner).page(cursor_id(after), limit + 1), limit)
    return SupernetList(
        data=[SupernetView.of(row) for row in part.rows], has_more=part.has_more, next=part.cursor(by_id)
    )


@router.get("/{supernet_id}", responses=problems(NotFound))
async def get_supernet(
    supernet_id: Annotated[str, Path(description="Id of a supernet, `sn_...`.")], caller: JobReader, session: SessionDep
) -> SupernetView:
    """One supernet."""
    row = await SupernetRepository(session, caller.owner).get(found := parse_id(IdKind.SUPERNET, supernet_id))
    if row is None:
        raise NotFound(f"There is no supernet {format_id(IdKind.SUPERNET, found)}.")
    return SupernetView.of(row)
