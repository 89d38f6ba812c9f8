"""Engines and session factories: one database URL for sync use (workers, relay) and async use (API).

Unix sockets are ordinary URLs, ``postgresql+psycopg://vitailor@/vitailor?host=/run/vitailor``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from psycopg.conninfo import make_conninfo
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from service.db.connections import bounded_async_connect, bounded_connect


class ApplicationName(StrEnum):
    """What ``pg_stat_activity`` shows of our processes."""

    API = "vitailor api"
    RELAY = "vitailor relay"
    WORKER = "vitailor worker"
    MIGRATE = "vitailor migrate"
    LAUNCHER = "vitailor launcher"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a process waits for the database, in seconds, before a call raises ``OperationalError``.

    ``unacknowledged_s`` bounds a call to a server that has vanished without closing the connection (power loss,
    network partition): it must stay below the job lease, or a worker would notice only after it has lost the lease.
    ``answer_s`` bounds every call, by the client's own clock: a server that hangs, or whatever lies between, may go on
    to acknowledge what it never answers. It is longer than ``statement_s``, so that a slow statement is ended by the
    server, in order.
    """

    connect_s: int = 5
    statement_s: float = 30.0
    lock_s: float = 10.0
    idle_in_transaction_s: float = 60.0
    unacknowledged_s: float = 15.0
    pool_s: float = 10.0

    @property
    def answer_s(self) -> float:
        """Longest wait for an answer."""
        return self.statement_s + _ANSWER_MARGIN_S

    @classmethod
    def within(cls, lease_s: float) -> Self:
        """For who holds leases or takes them away: one call that hangs must leave time for another try.

        A session that was left in the middle of a transaction holds its locks, those of the job's row perhaps, so it
        must not outlast the lease either.
        """
        usual = cls()
        half_s = max(_LEAST_S, lease_s / 2)
        return cls(
            statement_s=min(usual.statement_s, half_s),
            lock_s=min(usual.lock_s, half_s),
            idle_in_transaction_s=min(usual.idle_in_transaction_s, half_s),
            unacknowledged_s=min(usual.unacknowledged_s, half_s),
        )


_ANSWER_MARGIN_S = 1.0
_LEAST_S = 2.0


DEFAULT_TIMEOUTS = Timeouts()


def connection_options(application_name: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> dict[str, Any]:
    """Keyword arguments of :func:`psycopg.connect` that every connection of ours gets."""
    milliseconds = {
        "statement_timeout": timeouts.statement_s,
        "lock_timeout": timeouts.lock_s,
        "idle_in_transaction_session_timeout": timeouts.idle_in_transaction_s,
    }
    return {
        "application_name": application_name,
        "connect_timeout": timeouts.connect_s,
        "options": " ".join(f"-c {name}={round(1000 * seconds)}" for name, seconds in milliseconds.items()),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round(1000 * timeouts.unacknowledged_s),
    }


def conninfo(database_url: str, application_name: str) -> str:
    """The libpq form of the URL, for a connection of psycopg's own such as one that listens for notifications."""
    url = make_url(database_url)
    parameters = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
        **url.query,
        **connection_options(application_name),
    }
    return make_conninfo("", **{name: value for name, value in parameters.items() if value is not None})


def _pool_arguments(application_name: str, pool_size: int, timeouts: Timeouts) -> dict[str, Any]:
    return {
        "connect_args": connection_options(application_name, timeouts),
        "hide_parameters": True,  # errors are logged, and parameters hold whole specs
        "pool_pre_ping": True,
        "pool_size": pool_size,
        "pool_timeout": timeouts.pool_s,
    }


def sync_engine(
    database_url: str, application_name: str, *, pool_size: int = 5, timeouts: Timeouts = DEFAULT_TIMEOUTS
) -> Engine:
    """An engine for threads. ``application_name`` is what ``pg_stat_activity`` shows."""
    engine = create_engine(database_url, **_pool_arguments(application_name, pool_size, timeouts))
    connect = bounded_connect(timeouts.answer_s)
    event.listen(engine, "do_connect", lambda _dialect, _record, arguments, options: connect(*arguments, **options))
    return engine


def async_engine(
    database_url: str, application_name: str, *, pool_size: int = 5, timeouts: Timeouts = DEFAULT_TIMEOUTS
) -> AsyncEngine:
    """An engine for one event loop; takes the same URL as :func:`sync_engine`."""
    arguments = _pool_arguments(application_name, pool_size, timeouts)
    arguments["connect_args"]["async_creator_fn"] = bounded_async_connect(timeouts.answer_s)
    return create_async_engine(database_url, **arguments)


def session_factory(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after commit, so that no attribute access starts a new transaction."""
    return sessionmaker(engine, expire_on_commit=False)


def async_session_factory(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Async sessions with the rules of :func:`session_factory`."""
    return async_sessionmaker(engine, expire_on_commit=False)
