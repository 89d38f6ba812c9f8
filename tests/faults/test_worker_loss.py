"""Real relay, workers, trainers and servers, and what happens to a job when each of them dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy.exc import DBAPIError

from service.db.models import JobState
from service.embedded.servers import Servers
from service.jobs import transitions
from service.jobs.doorbell import celery_app, ring
from service.jobs.states import AttemptOutcome
from tests.faults.stack import Stack, trainer_pid
from tests.waiting import is_alive, wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def steps_of(trace: Path) -> list[tuple[int, int]]:
    """(fence, step) in the order in which they were made."""
    pairs = [line.split() for line in trace.read_text().splitlines()]
    return [(int(fence), int(step)) for fence, step in pairs]


def holding(trace: Path, gate: Path) -> dict[str, str | int]:
    """Work up to step 6, with a checkpoint at 4, then wait for the gate."""
    return {"trace": str(trace), "gate": str(gate), "hold_at": 6}


def test_many_doorbells_one_attempt(stack: Stack, trace: Path, gate: Path) -> None:
    stack.start_relay()
    worker = stack.start_worker(worker_slots=2)
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    bell = celery_app(stack.settings.broker_url)
    for _ in range(10):
        ring(bell, "cpu")
    with Redis.from_url(stack.settings.broker_url.replace("redis+socket", "unix")) as broker:
        wait_until(lambda: broker.llen("vitailor:cpu") == 0, "all doorbells are answered")
    gate.touch()
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.SUCCEEDED]
    assert steps_of(trace) == [(1, step) for step in range(10)]
    assert "torch" not in Path(f"/proc/{worker.pid}/maps").read_text()


def test_killed_worker_takes_its_trainer_along_and_the_job_goes_on_elsewhere(
    stack: Stack, trace: Path, gate: Path
) -> None:
    stack.start_relay()
    first = stack.start_worker()
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    wait_until(lambda: "rss_bytes" in stack.attempts(job_id)[0].info, "a heartbeat tells of the trainer's memory")
    trainer = trainer_pid(first)
    first.kill()
    wait_until(lambda: not is_alive(trainer), "the trainer has ended itself")
    gate.touch()
    stack.start_worker("two")
    job = stack.wait_for_state(job_id, JobState.SUCCEEDED)
    lost, succeeded = stack.attempts(job_id)
    assert (lost.outcome, succeeded.outcome) == (AttemptOutcome.LOST, AttemptOutcome.SUCCEEDED)
    assert lost.error is not None
    assert lost.error["code"] == "worker_lost"
    assert lost.error["last_known"]["rss_bytes"] > 0
    assert job.fence == 3  # claimed, reaped, claimed
    assert [step for fence, step in steps_of(trace) if fence == 3] == list(range(4, 10))
    # The job has ended before its folder is removed.
    wait_until(lambda: not list((stack.settings.data_dir / "runs").iterdir()), "no run directory is left")


def test_terminated_worker_hands_its_job_back(stack: Stack, trace: Path, gate: Path) -> None:
    stack.start_relay()
    first = stack.start_worker()
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=20) == 0
    job = stack.job(job_id)
    assert (job.state, job.failures) == (JobState.QUEUED, 0)
    assert stack.worker("one") is None
    gate.touch()
    stack.start_worker("two")
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [
        AttemptOutcome.PREEMPTED,
        AttemptOutcome.SUCCEEDED,
    ]
    assert steps_of(trace) == [(1, step) for step in range(6)] + [(2, step) for step in range(6, 10)]


def test_wiped_broker_loses_no_job(stack: Stack, servers: Servers, trace: Path, gate: Path) -> None:
    stack.start_relay()
    stack.start_worker()
    running = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(running)
    waiting = stack.enqueue()
    ring(celery_app(stack.settings.broker_url), "gpu")  # something to lose
    with Redis(unix_socket_path=str(servers.valkey.socket)) as broker:
        broker.flushall()
    gate.touch()
    for job_id in (running, waiting):
        stack.wait_for_state(job_id, JobState.SUCCEEDED)
        assert len(stack.attempts(job_id)) == 1


def test_killed_database_costs_no_attempt(stack: Stack, servers: Servers, trace: Path, gate: Path) -> None:
    stack.start_relay()
    stack.start_worker()
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    os.kill(servers.supervisor.pids()["postgres"], signal.SIGKILL)
    gate.touch()  # progress, a checkpoint and the result arrive while the database is away

    def finished() -> bool:
        try:
            return stack.job(job_id).state == JobState.SUCCEEDED
        except DBAPIError:
            return False

    wait_until(finished, "the job succeeds", limit_s=60)
    assert [attempt.fence for attempt in stack.attempts(job_id)] == [1]
    assert steps_of(trace) == [(1, step) for step in range(10)]
    assert len(stack.checkpoints(job_id)) == 2


def test_frozen_worker_leaves_no_second_writer(stack: Stack, trace: Path, gate: Path) -> None:
    stack.start_relay()
    first = stack.start_worker()
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    trainer = trainer_pid(first)
    first.send_signal(signal.SIGSTOP)
    frozen_at = time.monotonic()
    wait_until(lambda: not is_alive(trainer), "the trainer has ended itself")
    assert time.monotonic() - frozen_at < stack.settings.lease_s
    gate.touch()
    stack.start_worker("two")
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: worker_is_idle(stack, "one"), "the first worker has given up the job")
    job = stack.job(job_id)
    assert (job.state, job.fence) == (JobState.SUCCEEDED, 3)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.LOST, AttemptOutcome.SUCCEEDED]
    assert steps_of(trace) == [(1, step) for step in range(6)] + [(3, step) for step in range(4, 10)]


def worker_is_idle(stack: Stack, name: str) -> bool:
    row = stack.worker(name)
    return row is not None and row.busy == 0


def test_poisonous_job_ends_and_the_healthy_one_behind_it_completes(stack: Stack) -> None:
    stack.start_relay()
    stack.start_worker()
    poison = stack.enqueue(fault="crash", fault_at=0)
    healthy = stack.enqueue()
    stack.wait_for_state(healthy, JobState.SUCCEEDED)
    job = stack.wait_for_state(poison, JobState.FAILED)
    assert job.error is not None
    assert job.error["code"] == "worker_lost"
    assert len(stack.attempts(poison)) == 3


@pytest.mark.slow
def test_cancel_of_a_job_whose_worker_is_dead(stack: Stack, trace: Path, gate: Path) -> None:
    stack.start_relay()
    worker = stack.start_worker()
    job_id = stack.enqueue(**holding(trace, gate))
    stack.wait_for_checkpoint(job_id)
    worker.kill()
    stack.act(transitions.request_cancel, job_id)
    stack.wait_for_state(job_id, JobState.CANCELLED)
