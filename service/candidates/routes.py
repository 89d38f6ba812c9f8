"""Routes of a search's candidates and its Pareto front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from service.auth import JobReader
from service.candidates.csv import csv_lines
from service.candidates.query import CandidateFilterDep
from service.candidates.repository import CandidateRepository, Place
from service.candidates.schemas import Axis, CandidateList, CandidateView, Order, ParetoFront
from service.db.models import Candidate
from service.errors import ErrorItem, NotFound, ValidationFailed
from service.http import StrictRoute, accepts, content_disposition
from service.idempotency import json_response
from service.ids import IdKind, parse_id
from service.jobs.routes import JobId
from service.jobs.service import get_job
from service.openapi import Responses, problems
from service.pagination import (
    DEFAULT_LIMIT,
    CursorParam,
    LimitParam,
    SequenceNumber,
    Slice,
    bad_cursor,
    decode_cursor,
)
from service.services import ServicesDep, SessionDep

router = APIRouter(prefix="/jobs", tags=["candidates"], route_class=StrictRoute)

JSON = "application/json"
CSV = "text/csv"

_Number = Annotated[float, Field(allow_inf_nan=False)]

_RESPONSES: Responses = {
    200: {"content": {CSV: {"schema": {"type": "string"}, "example": "n,id,generation,score,...\r\n"}}},
    **problems(NotFound),
}


@router.get("/{job_id}/candidates", response_model=CandidateList, responses=_RESPONSES)
async def list_candidates(
    request: Request,
    job_id: JobId,
    caller: JobReader,
    parts: ServicesDep,
    wanted: CandidateFilterDep,
    sort: Annotated[
        Order, Query(description="`n`: as evaluated. A figure: the best first, without those that do not have it.")
    ] = Order.N,
    format: Annotated[Literal["json", "csv"] | None, Query(description="Wins over `Accept`.")] = None,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
    accept: Annotated[str, Header(description=f"`{CSV}` for all candidates as one table.")] = JSON,
) -> Response:
    """Scored architectures of a search. As CSV it is all that are asked for; `after` and `limit` are for JSON pages."""
    async with parts.sessions() as session:
        job = await get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
        if format == "csv" or (format is None and accepts(request, (JSON, CSV)) == CSV):
            lines = csv_lines(parts, caller.owner, job.id, wanted, sort)
            headers = {"Content-Disposition": content_disposition(f"{job_id}-candidates.csv")}
            return StreamingResponse(lines, media_type=CSV, headers=headers)
        place = _place(after, sort) if after is not None else None
        rows = await CandidateRepository(session, caller.owner).page(job.id, wanted, sort, place, limit + 1)
    part = Slice.of(rows, limit)
    views = [CandidateView.of(row) for row in part.rows]
    return json_response(CandidateList(data=views, has_more=part.has_more, next=part.cursor(_sort_key(sort))))


def _sort_key(sort: Order) -> Callable[[Candidate], tuple[Any, ...]]:
    if sort is Order.N:
        return lambda row: (sort, row.n)
    axis = Axis(sort.value)
    return lambda row: (sort, row.n, row.score if axis is Axis.SCORE else row.costs[axis.value])


def _place(cursor: str, sort: Order) -> Place:
    # The order is part of the cursor: one of another order would silently skip candidates.
    if sort is Order.N:
        return Place(decode_cursor(cursor, tuple[Literal[Order.N], SequenceNumber])[1])
    found, n, figure = decode_cursor(cursor, tuple[Order, SequenceNumber, _Number])
    if found is not sort:
        raise bad_cursor()
    return Place(n, -figure if Axis(sort.value).goal == "max" else figure)


@router.get("/{job_id}/pareto", responses=problems(NotFound))
async def get_pareto_front(
    job_id: JobId,
    caller: JobReader,
    session: SessionDep,
    x: Annotated[Axis | None, Query(description="With `y`: draw the front over these two figures.")] = None,
    y: Annotated[Axis | None, Query(description="Another figure than `x`.")] = None,
    feasible: Annotated[bool, Query(description="Only candidates that meet the limits.")] = True,
) -> ParetoFront:
    """The best trade-offs of a search: over its own objectives, or over any two figures."""
    job = await get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
    candidates = CandidateRepository(session, caller.owner)
    if x is None and y is None:
        rows = await candidates.front(job.id, feasible_only=feasible)
    elif x is None or y is None or x is y:
        missing = "x" if x is None else "y"
        detail = "give x and y, two different figures, or neither for the objectives of the search"
        allowed = [axis.value for axis in Axis if axis not in (x, y)]
        raise ValidationFailed(f"{missing}: {detail}.", errors=[ErrorItem(missing, "missing_axis", detail, allowed)])
    else:
        rows = await candidates.front_over(job.id, x, y, feasible_only=feasible)
    return ParetoFront(x=x, y=y, feasible=feasible, data=[CandidateView.of(row) for row in rows])
