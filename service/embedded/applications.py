"""The service's own processes as children of the launcher. A compose file runs the same commands."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

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
    url = f"{address_of(listener)}/readyz"
    fd = listener.fileno()
    launched_at = _first_value(settings, "SELECT clock_timestamp()")
    return (
        ChildSpec(name="relay", argv=_module("service.jobs.relay"), env=env, ready=lambda: _is_connected(settings)),
        ChildSpec(
            name="api",
            argv=(*_module("service.main"), "--fd", str(fd)),
            env=env,
            pass_fds=(fd,),
            ready=lambda: _answers_ok(url),
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
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all addresses: the loopback one is certain to work here
        host = "127.0.0.1" if listener.family is socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def _answers_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_LIMIT_S) as response:
            return bool(response.status == HTTPStatus.OK)
    except (urllib.error.URLError, OSError):
        return False


def _is_connected(settings: Settings) -> bool:
    query = "SELECT true FROM pg_stat_activity WHERE application_name = %s LIMIT 1"
    return _first_value(settings, query, ApplicationName.RELAY) is not None


def _has_reported(settings: Settings, since: Any) -> bool:
    return _first_value(settings, "SELECT true FROM worker WHERE heartbeat_at >= %s LIMIT 1", since) is not None


def _first_value(settings: Settings, query: str, *parameters: Any) -> Any:
    with psycopg.connect(conninfo(settings.database_url, ApplicationName.LAUNCHER)) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    return None if row is None else row[0]
