"""Connections to the database through a network that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, select
from sqlalchemy.exc import OperationalError

from benchmarks.faults.proxy import Proxy
from service.db.engine import Timeouts, async_engine, session_factory, sync_engine
from service.embedded.servers import Servers

IMPATIENT = Timeouts(statement_s=0.1)


@pytest.fixture
def proxy(servers: Servers) -> Iterator[Proxy]:
    with Proxy(Path(servers.postgres.sockets) / ".s.PGSQL.5432") as proxy:
        yield proxy


@pytest.fixture
def url(proxy: Proxy, database_url: str) -> str:
    url = make_url(database_url).set(host="127.0.0.1", port=proxy.port, query={})
    return url.render_as_string(hide_password=False)


def test_a_connection_that_swallows_everything_is_given_up(proxy: Proxy, url: str) -> None:
    sessions = session_factory(sync_engine(url, "test", timeouts=IMPATIENT))
    with sessions() as session:
        session.execute(select(1))
        proxy.mute()
        with pytest.raises(OperationalError):
            session.execute(select(2))
    with sessions() as session:  # on a new connection
        assert session.scalar(select(3)) == 3


def test_a_commit_that_is_not_answered_is_an_error(proxy: Proxy, url: str) -> None:
    sessions = session_factory(sync_engine(url, "test", timeouts=IMPATIENT))
    with sessions() as session:
        session.execute(select(1))
        proxy.mute()
        with pytest.raises(OperationalError):
            session.commit()


def test_requests_give_up_such_a_connection_too(proxy: Proxy, url: str) -> None:
    async def ask() -> int | None:
        engine = async_engine(url, "test", timeouts=IMPATIENT)
        async with engine.connect() as connection:
            await connection.execute(select(1))
            proxy.mute()
            with pytest.raises(OperationalError):
                await connection.execute(select(2))
        async with engine.connect() as connection:
            answer: int | None = await connection.scalar(select(3))
        await engine.dispose()
        return answer

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == 3


def test_who_holds_leases_waits_for_less_than_one() -> None:
    for lease_s in (6.0, 60.0):
        timeouts = Timeouts.within(lease_s)
        assert timeouts.answer_s < 0.75 * lease_s
        assert timeouts.idle_in_transaction_s < lease_s
    assert Timeouts.within(10_000.0) == Timeouts()
