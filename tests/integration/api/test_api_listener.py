"""The connection that hears of news."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.db.engine import conninfo
from service.db.models import JobState
from service.events.listener import JobListener
from service.jobs.events import EventType, append_event
from service.settings import Settings
from tests.integration.api.rows import add_job

NAME = "listener under test"
PATIENCE_S = 30.0


@asynccontextmanager
async def listening(settings: Settings) -> AsyncIterator[JobListener]:
    listener = JobListener(conninfo(settings.database_url, NAME))
    with listener.watch(uuid4()) as watch:
        task = asyncio.create_task(listener.run())
        await woken(watch.wait(PATIENCE_S))  # once it listens, it wakes everybody
    try:
        yield listener
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def woken(waiting: object) -> None:
    started = time.monotonic()
    await waiting  # type: ignore[misc]
    assert time.monotonic() - started < PATIENCE_S - 1, "nobody was woken"


def test_news_of_a_job_wakes_those_who_wait_for_it_and_nobody_else(
    shared_settings: Settings, session: Session, owner: str
) -> None:
    mine, other = (add_job(session, owner, JobState.RUNNING) for _ in range(2))

    async def scenario() -> None:
        async with listening(shared_settings) as listener:
            with listener.watch(mine) as watch, listener.watch(other) as idle:
                append_event(session, mine, EventType.LOG, {})
                session.commit()
                await woken(watch.wait(PATIENCE_S))
                started = time.monotonic()
                await idle.wait(0.2)
                assert time.monotonic() - started > 0.15

    asyncio.run(scenario())


def test_news_that_comes_between_two_waits_is_not_lost(shared_settings: Settings, session: Session, owner: str) -> None:
    mine, other = (add_job(session, owner, JobState.RUNNING) for _ in range(2))

    async def scenario() -> None:
        async with listening(shared_settings) as listener:
            with listener.watch(mine) as watch, listener.watch(other) as later:
                for job in (mine, other):
                    append_event(session, job, EventType.LOG, {})
                    session.commit()
                await woken(later.wait(PATIENCE_S))
                await woken(watch.wait(PATIENCE_S))

    asyncio.run(scenario())


def test_a_broken_connection_is_replaced_and_everybody_looks_again(
    shared_settings: Settings, session: Session, owner: str
) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)

    async def scenario() -> None:
        async with listening(shared_settings) as listener:
            with listener.watch(job_id) as watch:
                killed = text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :n"
                )
                assert session.scalar(killed, {"n": NAME}) == 1
                await woken(watch.wait(PATIENCE_S))  # what was told meanwhile may be lost
                append_event(session, job_id, EventType.LOG, {})
                session.commit()
                await woken(watch.wait(PATIENCE_S))

    asyncio.run(scenario())


def test_closing_wakes_everybody(shared_settings: Settings) -> None:
    async def scenario() -> None:
        listener = JobListener(conninfo(shared_settings.database_url, NAME))
        with listener.watch(uuid4()) as watch:
            listener.close()
            await woken(watch.wait(PATIENCE_S))
        assert listener.is_closing

    asyncio.run(scenario())
