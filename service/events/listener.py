"""One database connection of the process that hears which jobs have news, and wakes whoever waits for them.

A notification is a hint. It may be lost while the connection is away, so waiters look for themselves every
``POLL_S`` seconds as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg
import structlog
from psycopg import sql

from service.jobs.events import JOB_CHANNEL

log = structlog.get_logger(__name__)

POLL_S = 2.0
"""Longest that a waiter sleeps without looking."""

_FIRST_BACKOFF_S = 0.5
_LAST_BACKOFF_S = 30.0


class Watch:
    """Waits for news of one job. News that comes while nobody waits is remembered."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def notify(self) -> None:
        """There is news."""
        self._news.set()

    async def wait(self, timeout_s: float = POLL_S) -> None:
        """Return at the next news, and at the latest after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            self._news.clear()


class JobListener:
    """The connection and those who wait. Belongs to one event loop."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._watches: dict[UUID, set[Watch]] = {}
        self._closing = False

    @property
    def is_closing(self) -> bool:
        """True once the process is about to end: waiters must finish what they do and go."""
        return self._closing

    def close(self) -> None:
        """Ask all waiters to finish."""
        self._closing = True
        self._wake_all()

    @contextmanager
    def watch(self, job_id: UUID) -> Iterator[Watch]:
        """Hear of a job from now on. Look at the job after this, not before, or a change in between is missed."""
        watch = Watch()
        self._watches.setdefault(job_id, set()).add(watch)
        try:
            yield watch
        finally:
            others = self._watches[job_id]
            others.remove(watch)
            if not others:
                del self._watches[job_id]

    async def run(self) -> None:
        """Listen until cancelled, reconnecting whenever the connection breaks."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True) as connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(JOB_CHANNEL)))
                    backoff_s = _FIRST_BACKOFF_S
                    self._wake_all()  # whatever was told while nobody listened
                    async for notification in connection.notifies():
                        self._wake(notification.payload)
            except (psycopg.Error, OSError) as error:
                log.warning("listener_reconnects", wait_s=backoff_s, error=str(error).strip())
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    def _wake(self, payload: str) -> None:
        try:
            job_id = UUID(payload)
        except ValueError:
            log.warning("notification_not_understood", payload=payload[:80])
            return
        for watch in self._watches.get(job_id, ()):
            watch.notify()

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.notify()
