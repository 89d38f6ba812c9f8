"""Connections that wait for an answer for a limited time only.

The server's own limits (``statement_timeout`` and the like) are of no use when it hangs, and the kernel's (keepalive,
``TCP_USER_TIMEOUT``) only notice a peer that no longer acknowledges. A stopped server or a frozen proxy may acknowledge
for ever what is never answered, and whoever waits then waits for ever too: a relay that reaps nothing, a slot of a
worker that is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.abc import PQGen

RV = TypeVar("RV")


def bounded_connect(answer_s: float) -> Callable[..., Connection[Any]]:
    """:func:`psycopg.connect` whose connections close themselves and raise ``OperationalError`` after ``answer_s``
    seconds without an answer."""

    class Bounded(Connection[Any]):
        def wait(self, gen: PQGen[RV], interval: float = _POLL_S, timeout: float | None = None) -> RV:
            try:
                return super().wait(gen, interval, answer_s if timeout is None else timeout)
            except psycopg.OperationalError as error:
                if timeout is None and _is_unanswered(error):
                    # What the server does with the call is unknown, and its late answer must not be taken for another.
                    self.pgconn.finish()
                raise

    return Bounded.connect


def bounded_async_connect(answer_s: float) -> Callable[..., Awaitable[AsyncConnection[Any]]]:
    """The same for one event loop."""

    class Bounded(AsyncConnection[Any]):
        async def wait(self, gen: PQGen[RV], interval: float = _POLL_S, timeout: float | None = None) -> RV:
            try:
                return await super().wait(gen, interval, answer_s if timeout is None else timeout)
            except psycopg.OperationalError as error:
                if timeout is None and _is_unanswered(error):
                    self.pgconn.finish()
                raise

    return Bounded.connect


_POLL_S = 0.1  # psycopg's own: how often it looks for signals


def _is_unanswered(error: psycopg.OperationalError) -> bool:
    # An error that the server has sent has an SQLSTATE; psycopg's own class for this one is private.
    return error.sqlstate is None
