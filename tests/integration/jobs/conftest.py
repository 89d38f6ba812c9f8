"""One database for each module, emptied before each test: a fresh one for so many would take most of their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory, sync_engine
from service.embedded.servers import Servers
from service.jobs import transitions
from service.jobs.values import Claim
from service.settings import Settings
from service.store import open_store
from tests.integration.jobs.bench import Bench
from tests.jobs import TRAINER, counting_job, new_job
from tests.servers import fresh_database
from workers.context import WorkerContext


@pytest.fixture(scope="module")
def shared_engine(servers: Servers) -> Iterator[Engine]:
    with fresh_database(servers) as url:
        engine = sync_engine(url, "test", pool_size=12)
        yield engine
        engine.dispose()


@pytest.fixture
def sessions(shared_engine: Engine) -> sessionmaker[Session]:
    with shared_engine.begin() as connection:
        connection.execute(text("TRUNCATE job, dataset, worker CASCADE"))
    return session_factory(shared_engine)


@pytest.fixture
def context(tmp_path: Path, sessions: sessionmaker[Session]) -> WorkerContext:
    settings = Settings(
        _env_file=None,
        data_dir=tmp_path,
        lease_s=6.0,
        heartbeat_s=0.3,
        desired_poll_s=0.05,
        stop_grace_s=0.4,
        retry_backoff_s=0.01,
    )
    return WorkerContext(settings, sessions, open_store(settings.store_location), "test", TRAINER)


@pytest.fixture
def bench(context: WorkerContext) -> Callable[..., Bench]:
    def make(**spec: Any) -> Bench:
        with context.sessions.begin() as session:
            return Bench(context, transitions.enqueue(session, counting_job(**spec)))

    return make


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.fixture
def claim(sessions: sessionmaker[Session]) -> Callable[..., Claim]:
    def make(**job: Any) -> Claim:
        with sessions.begin() as session:
            transitions.enqueue(session, new_job(**job))
            claimed = transitions.claim_next(session, ["cpu"], "test", 60)
        assert claimed is not None
        return claimed

    return make
