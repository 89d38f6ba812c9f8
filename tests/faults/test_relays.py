"""Several relays at once, of which some are killed: every job runs, and none twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from service.db.models import JobState
from service.jobs.states import AttemptOutcome
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

JOBS = 12


def test_two_relays_lose_no_job_and_start_none_twice(stack: Stack, tmp_path: Path) -> None:
    """One of them is killed in the middle and another comes; two workers hear the bells."""
    relays = [stack.start_relay_process() for _ in range(2)]
    for name in ("one", "two"):
        stack.start_worker(name, worker_slots=2)
    jobs = [stack.enqueue(steps=3, trace=str(tmp_path / f"trace-{n}")) for n in range(JOBS)]

    def done() -> int:
        return [stack.job(job_id).state for job_id in jobs].count(JobState.SUCCEEDED)

    wait_until(lambda: done() >= 2, "some have run", limit_s=60)
    relays[0].send_signal(signal.SIGKILL)
    relays.append(stack.start_relay_process())
    wait_until(lambda: done() == JOBS, "all have run", limit_s=120)
    for n, job_id in enumerate(jobs):
        assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.SUCCEEDED]
        assert (tmp_path / f"trace-{n}").read_text().splitlines() == [f"1 {step}" for step in range(3)]
