"""A job's history as server-sent events (WHATWG HTML, section 9.2): first what was, then what comes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from uuid import UUID

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from service.jobs.repository import History, JobRepository
from service.jobs.schemas import EventView
from service.problems import DATABASE_AWAY
from service.services import Services

log = structlog.get_logger(__name__)

_BATCH = 200
_KEEP_ALIVE_S = 15.0
_RECONNECT_MS = 1000


async def event_stream(parts: Services, owner: str, job_id: UUID, after: int) -> AsyncGenerator[bytes]:
    """Frames of all events with a number above ``after``, until the job has ended or the process is about to.

    The stream outlives an outage of the database; meanwhile clients get keep-alive comments.
    """
    yield format_sse_event(retry=_RECONNECT_MS)
    told_at = time.monotonic()
    with parts.listener.watch(job_id) as watch:
        while True:
            try:
                history = await _read(parts, owner, job_id, after)
            except DATABASE_AWAY as error:
                log.warning("stream_waits_for_database", error=str(error))
                history = None
            for event in history.events if history else ():
                yield _frame(EventView.of(event, history.last_seq if history else 0))
                after, told_at = event.seq, time.monotonic()
            if (history and history.is_over) or parts.listener.is_closing:
                return
            if history and len(history.events) == _BATCH:
                continue
            if time.monotonic() - told_at > _KEEP_ALIVE_S:
                yield KEEPALIVE_COMMENT
                told_at = time.monotonic()
            await watch.wait()


async def _read(parts: Services, owner: str, job_id: UUID, after: int) -> History:
    async with parts.sessions() as session:
        return await JobRepository(session, owner).history(job_id, after, _BATCH)


def _frame(event: EventView) -> bytes:
    return format_sse_event(data_str=json.dumps(event.data), event=event.type, id=str(event.id))
