"""Real servers for the tests that need them, started once per test process and only when first asked for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from service.db.engine import session_factory, sync_engine
from service.embedded.servers import Servers
from service.settings import Settings
from service.store import ArtifactStore, open_store
from tests import servers as databases

# Half of a second on a busy machine says nothing about the code; each test has a time-out of its own.
hypothesis.settings.register_profile("vitailor", deadline=None)
hypothesis.settings.load_profile("vitailor")


TEST_DATA = "VITAILOR_TEST_DATA"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder with small public datasets."""
    folder = os.environ.get(TEST_DATA)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"{TEST_DATA} does not name a folder with the public test datasets")
    return Path(folder)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL and Valkey in a folder of their own; each xdist worker has its own pair."""
    # Not pytest's own temporary folder: as root, the servers' account could not enter it.
    with tempfile.TemporaryDirectory(prefix="vitailor-test-") as folder:
        settings = Settings(_env_file=None, data_dir=Path(folder))
        with Servers(settings, durable=False) as running:
            databases.make_template(running)
            yield running


@pytest.fixture
def database_url(servers: Servers) -> Iterator[str]:
    """A migrated database that no other test sees."""
    with databases.fresh_database(servers) as url:
        yield url


@pytest.fixture
def empty_database_url(servers: Servers) -> Iterator[str]:
    """A database without tables."""
    with databases.fresh_database(servers, template="template1") as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A sync engine on the test's database."""
    engine = sync_engine(database_url, "test")
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session on the test's database. Nothing is committed unless the test does so."""
    with session_factory(engine)() as session:
        yield session


@pytest.fixture
def broker_url(servers: Servers) -> str:
    """An empty broker."""
    databases.flush(servers)
    return servers.valkey.url


@pytest.fixture
def settings(tmp_path: Path, database_url: str, broker_url: str) -> Settings:
    """Settings of one test: its own database and folder, and times that let a test see a lease expire."""
    return Settings(
        _env_file=None,
        data_dir=tmp_path,
        database_url=database_url,
        broker_url=broker_url,
        port=0,
        lease_s=3.0,
        heartbeat_s=0.5,
        desired_poll_s=0.1,
        stop_grace_s=2.0,
        relay_interval_s=0.1,
        republish_s=1.0,
        retry_backoff_s=0.2,
        checkpoint_s=0.5,
        calibrate=False,
    )


@pytest.fixture
def store(settings: Settings) -> ArtifactStore:
    """The artifact store of the test's folder."""
    return open_store(settings.store_location)
