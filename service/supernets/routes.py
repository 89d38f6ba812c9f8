"""Routes of supernets. Read only: searches make them."""

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
from service.supernets.repository import SupernetRepository
from service.supernets.schemas import SupernetList, SupernetView

router = APIRouter(prefix="/supernets", tags=["supernets"], route_class=StrictRoute)


@router.get("", responses=problems())
async def list_supernets(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> SupernetList:
    """Supernets from the newest to the oldest."""
    before = decode_cursor(after, tuple[UUID])[0] if after is not None else None
    part = Slice.of(await SupernetRepository(session, caller.owner).page(before, limit + 1), limit)
    following = encode_cursor(part.rows[-1].id.hex) if part.has_more else None
    return SupernetList(data=[SupernetView.of(row) for row in part.rows], has_more=part.has_more, next=following)


@router.get("/{supernet_id}", responses=problems(NotFound))
async def get_supernet(
    supernet_id: Annotated[str, Path(description="Id of a supernet, `sn_...`.")], caller: JobReader, session: SessionDep
) -> SupernetView:
    """One supernet."""
    row = await SupernetRepository(session, caller.owner).get(found := parse_id(IdKind.SUPERNET, supernet_id))
    if row is None:
        raise NotFound(f"There is no supernet {format_id(IdKind.SUPERNET, found)}.")
    return SupernetView.of(row)
