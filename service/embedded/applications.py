"""The service's own processes as children of the launcher. A compose file runs the same commands."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import LiteralString

import psycopg

from service.db.engine import ApplicationName, conninfo
from service.embedded.children import ChildSpec
from service.settings import Settings

_ANSWER_LIMIT_S = 5.0
# Beyond the time that running jobs get for their checkpoint.
_DRAIN_MARGIN_S = 10.0


def application_children(settings: Settings, listener: socket.socket) -> Sequence[ChildSpec]:
    """Relay, API and worker for a migrated database. ``listener`` is the API's bound socket.

    Their readiness is what they do, not that they exist: the relay holds a session in the database, the API answers
    that it is ready, and a worker has reported since this call.
    """
    env = environment(settings)
    fd = listener.fileno()
    launched_at = _database_time(settings)
    return (
        ChildSpec(name="relay", argv=_module("service.jobs.relay"), env=env, ready=lambda: _is_connected(settings)),
        ChildSpec(
            name="api",
            argv=(*_module("service.main"), "--fd", str(fd)),
            env=env,
            pass_fds=(fd,),
            ready=lambda: _answers_ok(listener, "/readyz"),
        ),
        ChildSpec(
            name="worker",
            argv=_module("workers.main"),
            env=env,
            ready=lambda: _has_reported(settings, launched_at),
            stop_grace_s=2 * settings.stop_grace_s + _DRAIN_MARGIN_S,
        ),
    )


def environment(settings: Settings) -> dict[str, str]:
    """The variables that make a child read the same settings. The bootstrap key is the launcher's alone."""
    values = settings.model_dump(mode="json", exclude={"bootstrap_key"}, exclude_none=True)
    return {f"VITAILOR_{name.upper()}": str(value) for name, value in values.items()}


def address_of(listener: socket.socket) -> str:
    """The URL under which this machine reaches a bound socket."""
    host, port = _local_address(listener)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _local_address(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all addresses: the loopback one is certain to work here
        host = "127.0.0.1" if listener.family is socket.AF_INET else "::1"
    return host, port


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def _answers_ok(listener: socket.socket, path: str) -> bool:
    # Not urllib, which would ask a proxy of the environment for it.
    connection = http.client.HTTPConnection(*_local_address(listener), timeout=_ANSWER_LIMIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def _is_connected(settings: Settings) -> bool:
    return _finds(settings, "SELECT 1 FROM pg_stat_activity WHERE application_name = %s LIMIT 1", ApplicationName.RELAY)


def _has_reported(settings: Settings, since: datetime) -> bool:
    return _finds(settings, "SELECT 1 FROM worker WHERE heartbeat_at >= %s LIMIT 1", since)


def _finds(settings: Settings, query: LiteralString, parameter: object) -> bool:
    try:
        with _connection(settings) as connection:
            return connection.execute(query, [parameter]).fetchone() is not None
    except psycopg.OperationalError:
        return False


def _database_time(settings: Settings) -> datetime:
    with _connection(settings) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


def _connection(settings: Settings) -> psycopg.Connection:
    return psycopg.connect(conninfo(settings.database_url, ApplicationName.LAUNCHER))
