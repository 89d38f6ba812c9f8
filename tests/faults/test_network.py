"""Connections to database and broker that are cut, delayed or swallow everything, under a running job."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, make_url

from benchmarks.faults.proxy import Proxy
from service.db.models import JobState
from service.embedded.servers import Servers
from service.jobs.doorbell import celery_app, ping_queue
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


def is_deaf(stack: Stack) -> bool:
    worker = stack.worker("one")
    assert worker is not None, "it lives all the time"
    return worker.deaf


def test_a_worker_that_lives_and_hears_nothing_is_reported_until_it_hears_again(network: Network) -> None:
    """Its connections to the broker are open, and its heartbeats arrive."""
    stack = network.stack
    stack.start_worker(deaf_after_s=3)

    wait_until(lambda: not is_deaf(stack), "it hears itself", limit_s=40)
    network.broker.mute()
    wait_until(lambda: is_deaf(stack), "it is deaf", limit_s=40)
    wait_until(lambda: not is_deaf(stack), "it hears again", limit_s=60)


def test_a_worker_that_no_message_is_consumed_by_is_reported(network: Network) -> None:
    """The broker answers it in every way, and yet it takes nothing, as after some restarts of a broker."""
    stack = network.stack
    stack.start_worker(deaf_after_s=3)
    name = "one@" + socket.gethostname()
    app = celery_app(stack.settings.broker_url)

    def consume(orders: Callable[..., list[dict[str, Any]]]) -> None:
        for queue in ("cpu", ping_queue(name)):
            assert orders(queue, destination=[name], reply=True), "it answers"

    wait_until(lambda: not is_deaf(stack), "it hears itself", limit_s=40)
    consume(app.control.cancel_consumer)
    wait_until(lambda: is_deaf(stack), "it is deaf", limit_s=40)
    assert app.control.ping(destination=[name])
    consume(app.control.add_consumer)
    wait_until(lambda: not is_deaf(stack), "it hears again", limit_s=40)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_worker_ends_in_time_while_the_broker_is_silent(network: Network, tmp_path: Path, busy: bool) -> None:
    stack = network.stack
    stack.start_relay_process()
    worker = stack.start_worker()
    job_id = stack.enqueue(gate=str(tmp_path / "never"), hold_at=6) if busy else None
    if job_id is not None:
        stack.wait_for_checkpoint(job_id)
    wait_until(lambda: not is_deaf(stack), "it has begun to listen", limit_s=40)
    network.broker.mute()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=2 * stack.settings.stop_grace_s + 5) == 0
    assert stack.worker("one") is None
    if job_id is not None:
        assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.PREEMPTED]
