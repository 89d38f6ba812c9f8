"""The history of a job, as pages or as a live stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from service.auth import JobReader
from service.db.models import JobEvent
from service.errors import NotFound
from service.events.stream import event_stream
from service.http import StrictRoute, accepts
from service.idempotency import json_response
from service.ids import IdKind, parse_id
from service.jobs.repository import JobRepository
from service.jobs.routes import JobId
from service.jobs.schemas import EventList, EventView
from service.jobs.service import get_job
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, LimitParam
from service.services import ServicesDep

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=StrictRoute)

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

_LARGEST = 2**63 - 1

_RESPONSES: Responses = {
    200: {
        "content": {
            EVENT_STREAM: {
                "schema": {"type": "string"},
                "example": 'event: job.status\ndata: {"status": "running", "attempt": 1}\nid: 2\n\n',
            }
        }
    },
    204: {"description": "Stream only: the job has ended and there is nothing after this event; do not come back."},
    **problems(NotFound),
}


@router.get("/{job_id}/events", response_model=EventList, responses=_RESPONSES)
async def list_events(
    request: Request,
    job_id: JobId,
    caller: JobReader,
    parts: ServicesDep,
    after: Annotated[int, Query(ge=0, le=_LARGEST, description="Only events with a greater id.")] = 0,
    limit: LimitParam = DEFAULT_LIMIT,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=_LARGEST, description="As `after`, and wins over it; browsers send it.")
    ] = None,
    accept: Annotated[str, Header(description=f"`{EVENT_STREAM}` for the live stream.")] = JSON,
) -> Response:
    """What happened to the job, the oldest first.

    As a stream: everything so far, then what comes, a comment every 15 seconds while nothing does, and last the event
    `end`, after which the stream closes. Ids count from 1 without gaps, so a client that reconnects with the id that
    it saw last misses nothing and sees nothing twice.
    """
    since = after if last_event_id is None else last_event_id
    wants_stream = accepts(request, (JSON, EVENT_STREAM)) == EVENT_STREAM
    async with parts.sessions() as session:
        job = await get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
        history = await JobRepository(session, caller.owner).history(job.id, since, 1 if wants_stream else limit + 1)
    if not wants_stream:
        return json_response(_page(history.events[:limit], history.last_seq, len(history.events) > limit))
    if history.is_over and not history.events:
        return Response(status_code=204)
    return StreamingResponse(
        event_stream(parts, caller.owner, job.id, since),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


def _page(events: Sequence[JobEvent], last_seq: int, has_more: bool) -> EventList:
    views = [EventView.of(event, last_seq) for event in events]
    return EventList(data=views, has_more=has_more, next=str(views[-1].id) if has_more else None)
