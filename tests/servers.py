"""Databases for tests: one migrated template per run, one copy of it per test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from redis import Redis
from sqlalchemy import NullPool, create_engine, text

from service.db.migrate import upgrade
from service.embedded.servers import Servers

TEMPLATE = "migrated"
_numbers = itertools.count()


def make_template(servers: Servers) -> None:
    """Make the migrated database that the others are copied from."""
    servers.postgres.create_database(TEMPLATE)
    upgrade(servers.postgres.url(TEMPLATE))


@contextlib.contextmanager
def fresh_database(servers: Servers, template: str = TEMPLATE) -> Iterator[str]:
    """URL of a new database, dropped afterwards together with any connection left open."""
    name = f"test_{next(_numbers)}"
    servers.postgres.create_database(name, template)
    try:
        yield servers.postgres.url(name)
    finally:
        maintenance = create_engine(servers.postgres.url("postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with maintenance.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def flush(servers: Servers) -> None:
    """Empty the broker."""
    with Redis(unix_socket_path=str(servers.valkey.socket)) as client:
        client.flushall()
