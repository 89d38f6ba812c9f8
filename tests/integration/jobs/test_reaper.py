"""Leases that ran out, on a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Desired, JobState
from service.jobs import transitions
from service.jobs.states import AttemptOutcome
from service.jobs.values import Held, Reaped
from tests.integration.jobs.rows import attempts, claim_one, expire, load
from tests.jobs import insert_job

Sessions = sessionmaker[Session]


@pytest.mark.parametrize(
    ("desired", "failures", "state"),
    [
        (Desired.RUN, 0, JobState.QUEUED),
        (Desired.RUN, 2, JobState.FAILED),
        (Desired.PAUSE, 0, JobState.PAUSED),
        (Desired.CANCEL, 0, JobState.CANCELLED),
    ],
)
def test_reaper_follows_wish_and_count(sessions: Sessions, desired: Desired, failures: int, state: JobState) -> None:
    with sessions.begin() as session:
        job_id = insert_job(session, JobState.RUNNING, desired, failures=failures, stage="supernet")
    expire(sessions, job_id)
    with sessions.begin() as session:
        assert transitions.reap_expired(session, backoff_s=1) == [Reaped(job_id, 1, state)]
    job = load(sessions, job_id)
    assert (job.state, job.fence, job.failures, job.lease_until) == (state, 2, failures + 1, None)
    [attempt] = attempts(sessions, job_id)
    assert (attempt.outcome, attempt.ended_at) == (AttemptOutcome.LOST, job.heartbeat_at)
    assert attempt.error is not None
    assert attempt.error["code"] == "worker_lost"
    assert attempt.error["last_known"]["stage"] == "supernet"


def test_reaper_leaves_living_leases_alone(sessions: Sessions) -> None:
    claim_one(sessions)
    with sessions.begin() as session:
        assert transitions.reap_expired(session, backoff_s=1) == []


def test_reaper_and_heartbeat_on_one_row_have_one_winner(sessions: Sessions) -> None:
    """The reaper skips a row that a heartbeat holds; afterwards the lease is fresh."""
    claimed = claim_one(sessions)
    expire(sessions, claimed.job_id)
    with sessions.begin() as owner:
        assert isinstance(transitions.heartbeat(owner, claimed.job_id, claimed.fence, 60), Held)
        with sessions.begin() as reaper:
            assert transitions.reap_expired(reaper, backoff_s=1) == []
    with sessions.begin() as reaper:
        assert transitions.reap_expired(reaper, backoff_s=1) == []


def test_concurrent_reapers_take_each_job_once(sessions: Sessions) -> None:
    jobs = {claim_one(sessions).job_id for _ in range(10)}
    for job_id in jobs:
        expire(sessions, job_id)
    start = threading.Barrier(4)

    def reap(_: int) -> list[UUID]:
        start.wait()
        with sessions.begin() as session:
            return [reaped.job_id for reaped in transitions.reap_expired(session, backoff_s=1)]

    with ThreadPoolExecutor(4) as pool:
        reaped = [job_id for mine in pool.map(reap, range(4)) for job_id in mine]
    assert sorted(reaped) == sorted(jobs)
    assert {load(sessions, job_id).failures for job_id in jobs} == {1}
