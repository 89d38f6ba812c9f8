"""The application in this process, on real servers.

Starting an application and a database takes as long as many tests, so tests share them and each is an owner of its
own, who sees nothing of the others. What is not separated by owners (workers, the queue) is tested on ``alone``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.app import create_app
from service.db.engine import session_factory, sync_engine
from service.embedded.servers import Servers
from service.settings import Settings
from service.store import ArtifactStore, open_store
from tests.integration.api.rows import add_key
from tests.servers import fresh_database

NewClient = Callable[[str], TestClient]
"""Gives a client that sends this key."""


@pytest.fixture(scope="package")
def shared_settings(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("api")
    (folder / "imports").mkdir()
    with fresh_database(servers) as url:
        yield Settings(
            _env_file=None,
            data_dir=folder / "data",
            database_url=url,
            broker_url=servers.valkey.url,
            import_root=folder / "imports",
        )


@pytest.fixture(scope="package")
def running(shared_settings: Settings) -> Iterator[TestClient]:
    """The running application, without a key."""
    with serving(create_app(shared_settings)) as client:
        yield client


def serving(app: FastAPI) -> TestClient:
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def client_with(running: TestClient) -> NewClient:
    def make(key: str) -> TestClient:
        client = TestClient(
            running.app,
            headers={"Authorization": f"Bearer {key}"},
            raise_server_exceptions=False,
            follow_redirects=False,
        )
        client.portal = running.portal  # the application lives on one event loop
        return client

    return make


@pytest.fixture
def session(shared_settings: Settings) -> Iterator[Session]:
    """A session on the shared database; tests commit what the application is to see."""
    engine = sync_engine(shared_settings.database_url, "test")
    with session_factory(engine)() as session:
        yield session
    engine.dispose()


@pytest.fixture
def owner() -> str:
    return f"owner-{uuid4().hex}"


@pytest.fixture
def api(client_with: NewClient, session: Session, owner: str) -> TestClient:
    """A client with all rights of ``owner``."""
    return client_with(add_key(session, owner=owner, scopes=["admin"]))


@pytest.fixture
def stranger(client_with: NewClient, session: Session) -> TestClient:
    """A client with all rights of somebody else."""
    return client_with(add_key(session, owner=f"stranger-{uuid4().hex}", scopes=["admin"]))


@pytest.fixture
def import_root(shared_settings: Settings) -> Path:
    assert shared_settings.import_root is not None
    return shared_settings.import_root


@pytest.fixture
def store(shared_settings: Settings) -> ArtifactStore:
    return open_store(shared_settings.store_location)


@pytest.fixture
def fresh_session(settings: Settings) -> Iterator[Session]:
    """A session on the database of ``alone``."""
    engine = sync_engine(settings.database_url, "test")
    with session_factory(engine)() as session:
        yield session
    engine.dispose()


@pytest.fixture
def alone(settings: Settings, fresh_session: Session) -> Iterator[TestClient]:
    """A running application with a database of its own, and a client with all rights."""
    key = add_key(fresh_session, owner="default", scopes=["admin"])
    with serving(create_app(settings)) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        yield client
