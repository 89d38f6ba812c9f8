"""A broker that forgets everything, with many jobs waiting."""

from __future__ import annotations

import pytest
from redis import Redis

from service.db.models import JobState
from service.embedded.servers import Servers
from service.jobs.states import AttemptOutcome
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS = 50


def test_fifty_queued_jobs_outlive_a_flush(stack: Stack, servers: Servers) -> None:
    """One flush before anybody has come, the others while they run."""
    jobs = [stack.enqueue(steps=2) for _ in range(JOBS)]
    stack.start_relay()
    stack.start_worker(worker_slots=4)
    flush_at = {0, 10, 25, 40}
    with Redis(unix_socket_path=str(servers.valkey.socket)) as broker:

        def all_done() -> bool:
            states = [stack.job(job_id).state for job_id in jobs]
            done = states.count(JobState.SUCCEEDED)
            for moment in [moment for moment in flush_at if moment <= done]:
                flush_at.remove(moment)
                broker.flushall()
            assert JobState.FAILED not in states
            return done == JOBS

        wait_until(all_done, "all jobs succeed", limit_s=400, poll_s=0.2)
    assert not flush_at
    for job_id in jobs:
        assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.SUCCEEDED]
