"""Connections to database and broker that are cut, delayed or swallow everything, under a running job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from benchmarks.faults.proxy import Proxy
from service.db.models import JobState
from service.embedded.servers import Servers
from service.jobs.states import AttemptOutcome
from service.settings import Settings
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

LEASE_S = 12.0


class Network:
    """Relay and worker reach their servers through it."""

    def __init__(self, stack: Stack, database: Proxy, broker: Proxy) -> None:
        self.stack = stack
        self.database = database
        self.broker = broker


@pytest.fixture
def network(settings: Settings, engine: Engine, servers: Servers) -> Iterator[Network]:
    with ExitStack() as parts:
        database = parts.enter_context(Proxy(Path(servers.postgres.sockets) / ".s.PGSQL.5432"))
        broker = parts.enter_context(Proxy(servers.valkey.socket))
        url = make_url(settings.database_url).set(host="127.0.0.1", port=database.port, query={})
        changes = {
            "database_url": url.render_as_string(hide_password=False),
            "broker_url": f"redis://127.0.0.1:{broker.port}/0",
            "lease_s": LEASE_S,
        }
        stack = Stack(settings.model_copy(update=changes), engine)
        parts.callback(stack.close)
        yield Network(stack, database, broker)


def delay(proxy: Proxy) -> None:
    proxy.delay(0.05)


@pytest.mark.parametrize("hurt", [Proxy.cut, Proxy.mute, delay], ids=["cut", "mute", "delayed"])
def test_the_database_connections_of_a_running_job(
    network: Network, tmp_path: Path, hurt: Callable[[Proxy], object]
) -> None:
    """Longer than an answer may take, shorter than a lease: the attempt survives."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    stack = network.stack
    stack.start_relay_process()
    stack.start_worker()
    job_id = stack.enqueue(trace=str(trace), gate=str(gate), hold_at=6)
    stack.wait_for_checkpoint(job_id)
    before = stack.job(job_id).heartbeat_at
    hurt(network.database)
    wait_until(lambda: stack.job(job_id).heartbeat_at != before, "the lease is renewed", limit_s=LEASE_S)
    gate.touch()
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.SUCCEEDED]
    assert trace.read_text().splitlines() == [f"1 {step}" for step in range(10)]


@pytest.mark.parametrize("hurt", [Proxy.cut, Proxy.mute, delay], ids=["cut", "mute", "delayed"])
def test_the_broker_connections_of_relay_and_idle_worker(network: Network, hurt: Callable[[Proxy], object]) -> None:
    """The next job starts all the same. A worker that waits for a message notices a silent broker within a minute."""
    stack = network.stack
    stack.start_relay_process()
    stack.start_worker()
    stack.wait_for_state(stack.enqueue(), JobState.SUCCEEDED)
    hurt(network.broker)
    job_id = stack.enqueue()
    stack.wait_for_state(job_id, JobState.SUCCEEDED, limit_s=60)
    assert len(stack.attempts(job_id)) == 1
