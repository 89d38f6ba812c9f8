"""The gate through which an attempt writes, when the database ends its sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

from service.db.engine import Timeouts, session_factory, sync_engine
from service.jobs.values import Claim
from service.settings import Settings
from tests.waiting import wait_until
from workers.lease import LeaseKeeper


@pytest.fixture
def hasty(shared_engine: Engine) -> Iterator[Engine]:
    """The database ends sessions that idle in a transaction almost at once, as it does those of a frozen worker."""
    url = shared_engine.url.render_as_string(hide_password=False)
    engine = sync_engine(url, "hasty", timeouts=Timeouts(idle_in_transaction_s=0.1))
    yield engine
    engine.dispose()


def test_a_session_that_is_ended_in_a_transaction_costs_a_repetition(
    hasty: Engine, sessions: Callable[[], Session], claim: Callable[..., Claim]
) -> None:
    keeper = LeaseKeeper(session_factory(hasty), claim(), Settings(_env_file=None), threading.Event())
    pids: list[int] = []

    def change(session: Session) -> int:
        pids.append(session.execute(text("SELECT pg_backend_pid()")).scalar_one())
        if len(pids) == 1:
            wait_until(lambda: not _lives(sessions, pids[0]), "the session is ended")
        return int(session.execute(select(7)).scalar_one())

    assert keeper.write(change) == 7
    assert len(pids) == 2


def _lives(sessions: Callable[[], Session], pid: int) -> bool:
    with sessions() as session:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        return session.execute(query, {"pid": pid}).scalar_one() > 0
