"""Longer outages of the servers under real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from service.db.models import JobState
from service.embedded.servers import Servers
from service.jobs.states import AttemptOutcome
from tests.faults.stack import Stack, trainer_pid
from tests.waiting import is_alive, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def test_an_idle_worker_hears_the_bell_after_each_restart_of_the_broker(stack: Stack, servers: Servers) -> None:
    stack.start_relay()
    stack.start_worker()
    stack.wait_for_state(stack.enqueue(), JobState.SUCCEEDED)
    for _ in range(3):
        os.kill(servers.supervisor.pids()["valkey"], signal.SIGKILL)
        job_id = stack.enqueue()  # while it is away
        stack.wait_for_state(job_id, JobState.SUCCEEDED, limit_s=60)
        assert len(stack.attempts(job_id)) == 1
    wait_until(lambda: answers(servers), "the broker is back for the tests that follow")


def answers(servers: Servers) -> bool:
    try:
        with Redis(unix_socket_path=str(servers.valkey.socket)) as broker:
            return bool(broker.ping())
    except RedisError:
        return False


def test_a_database_that_hangs_longer_than_a_lease_leaves_one_writer(
    stack: Stack, servers: Servers, tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    stack.start_relay()
    worker = stack.start_worker()
    job_id = stack.enqueue(trace=str(trace), gate=str(gate), hold_at=6)
    stack.wait_for_checkpoint(job_id)
    trainer = trainer_pid(worker)
    with frozen(servers.supervisor.pids()["postgres"]):
        wait_until(lambda: not is_alive(trainer), "the trainer has stopped by itself")
        gate.touch()
    job = stack.wait_for_state(job_id, JobState.SUCCEEDED, limit_s=60)
    outcomes = [attempt.outcome for attempt in stack.attempts(job_id)]
    assert outcomes[-1] == AttemptOutcome.SUCCEEDED
    assert set(outcomes[:-1]) <= {AttemptOutcome.PREEMPTED, AttemptOutcome.LOST}
    fences = [int(line.split()[0]) for line in trace.read_text().splitlines()]
    assert fences == sorted(fences)
    assert job.result == {"steps": 10}


@contextmanager
def frozen(postmaster: int) -> Iterator[None]:
    """The server and all its sessions stand still: connections stay open, and nothing answers."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    pids = [postmaster, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
