"""Routes of workers."""

from __future__ import annotations

from fastapi import APIRouter

from service.auth import JobReader
from service.http import StrictRoute
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Name, Slice, decode_cursor
from service.services import ServicesDep, SessionDep
from service.workers.repository import WorkerRepository
from service.workers.schemas import WorkerList

router = APIRouter(prefix="/workers", tags=["workers"], route_class=StrictRoute)


@router.get("", responses=problems())
async def list_workers(
    caller: JobReader,
    session: SessionDep,
    parts: ServicesDep,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
) -> WorkerList:
    """Who is there to run jobs."""
    behind = decode_cursor(after, tuple[Name])[0] if after is not None else None
    part = Slice.of(await WorkerRepository(session, parts.settings.lease_s).page(behind, limit + 1), limit)
    return WorkerList(data=list(part.rows), has_more=part.has_more, next=part.cursor(lambda row: (row.name,)))
