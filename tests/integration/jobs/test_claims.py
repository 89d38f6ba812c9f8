"""Claims and heartbeats, on a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import ColumnElement, func, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Attempt, Desired, Job, JobState
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.values import Held
from tests.integration.jobs.rows import attempts, claim, claim_one, enqueue, events, expire, load
from tests.jobs import insert_job, new_job

Sessions = sessionmaker[Session]


def test_enqueue_returns_a_loaded_row_and_tells_it(sessions: Sessions) -> None:
    with sessions.begin() as session:
        job = transitions.enqueue(session, new_job(name="mine"))
    assert (job.name, job.state, job.failures, job.last_seq, job.revision) == ("mine", "queued", 0, 1, 1)
    [event] = events(sessions, job.id)
    assert (event.seq, event.type, event.payload["status"]) == (1, EventType.JOB_STATUS, "queued")


def test_claim_takes_highest_priority_then_oldest(sessions: Sessions) -> None:
    old, urgent, young = enqueue(sessions), enqueue(sessions, priority=5), enqueue(sessions)
    assert [claim(sessions).job_id for _ in range(3)] == [urgent, old, young]


def test_claim_is_by_queue_and_skips_backoff(sessions: Sessions) -> None:
    enqueue(sessions, queue="gpu")
    waiting = enqueue(sessions)
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == waiting).values(not_before=func.now() + timedelta(hours=1)))
    with sessions.begin() as session:
        assert transitions.claim_next(session, ["cpu"], "w/0", 60) is None


def test_claim_records_attempt_and_lease(sessions: Sessions) -> None:
    job_id = enqueue(sessions)
    with sessions.begin() as session:
        claimed = transitions.claim_next(session, ["cpu", "gpu"], "w/0", 60, {"host": "h"})
    assert claimed is not None
    assert (claimed.fence, claimed.attempt, claimed.spec) == (1, 1, {"method": "masktas"})
    job = load(sessions, job_id)
    assert (job.state, job.lease_owner, job.attempts) == (JobState.RUNNING, "w/0", 1)
    assert job.lease_until is not None
    assert job.started_at is not None
    assert job.lease_until - job.started_at == timedelta(seconds=60)
    [attempt] = attempts(sessions, job_id)
    assert (attempt.fence, attempt.worker, attempt.info, attempt.outcome) == (1, "w/0", {"host": "h"}, None)


def test_concurrent_claims_never_share_a_job(sessions: Sessions) -> None:
    jobs = {enqueue(sessions) for _ in range(20)}
    start = threading.Barrier(8)

    def drain(worker: int) -> list[UUID]:
        start.wait()
        mine: list[UUID] = []
        while True:
            with sessions.begin() as session:
                claimed = transitions.claim_next(session, ["cpu"], f"w/{worker}", 60)
            if claimed is None:
                return mine
            mine.append(claimed.job_id)

    with ThreadPoolExecutor(8) as pool:
        taken = [job_id for mine in pool.map(drain, range(8)) for job_id in mine]
    assert sorted(taken) == sorted(jobs)


def test_running_without_a_lease_is_impossible(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    with pytest.raises(IntegrityError, match="running_has_lease"), sessions.begin() as session:
        session.execute(update(Job).where(Job.id == claimed.job_id).values(lease_until=None, lease_owner=None))


def test_heartbeat_extends_the_lease_and_tells_the_wish(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    expire(sessions, claimed.job_id)
    with sessions.begin() as session:
        transitions.request_pause(session, claimed.job_id)
    with sessions.begin() as session:
        held = transitions.heartbeat(session, claimed.job_id, claimed.fence, 60, {"rss_bytes": 7})
        assert held == Held(Desired.PAUSE, deadline_passed=False)
    with sessions.begin() as session:
        assert transitions.reap_expired(session, backoff_s=1) == []
    assert attempts(sessions, claimed.job_id)[0].info == {"rss_bytes": 7}


def test_look_does_not_extend_the_lease(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    expire(sessions, claimed.job_id)
    with sessions.begin() as session:
        assert isinstance(transitions.look(session, claimed.job_id, claimed.fence), Held)
    with sessions.begin() as session:
        assert len(transitions.reap_expired(session, backoff_s=1)) == 1


def test_spent_budget_shows_in_the_heartbeat(sessions: Sessions) -> None:
    claimed = claim_one(sessions, spec={"budget": {"max_wall_seconds": 60}})
    with sessions.begin() as session:
        held = transitions.heartbeat(session, claimed.job_id, claimed.fence, 60)
        assert held == Held(Desired.RUN, deadline_passed=False)
        session.execute(update(Job).values(deadline_at=func.now()))
        assert transitions.look(session, claimed.job_id, claimed.fence) == Held(Desired.RUN, deadline_passed=True)


def test_budget_counts_the_running_time_of_earlier_attempts(sessions: Sessions) -> None:
    job_id = enqueue(sessions, spec={"budget": {"max_wall_seconds": 100}})
    with sessions.begin() as session:
        session.execute(update(Job).values(device_seconds=70.0))
    claim(sessions)
    job = load(sessions, job_id)
    assert job.deadline_at is not None
    assert job.started_at is not None
    assert job.deadline_at - job.started_at == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("budget", "left_s"),
    [({"max_device_hours": 0.05}, 110), ({"max_device_hours": 0.05, "max_wall_seconds": 100}, 30), ({}, None)],
)
def test_the_first_limit_of_a_budget_counts(sessions: Sessions, budget: dict[str, float], left_s: int | None) -> None:
    job_id = enqueue(sessions, spec={"budget": budget})
    with sessions.begin() as session:
        session.execute(update(Job).values(device_seconds=70.0))
    claim(sessions)
    job = load(sessions, job_id)
    assert job.started_at is not None
    assert job.deadline_at == (None if left_s is None else job.started_at + timedelta(seconds=left_s))


def test_device_hours_count_those_of_helpers(sessions: Sessions) -> None:
    claimed = claim_one(sessions, spec={"budget": {"max_device_hours": 1}})

    def is_spent() -> set[bool]:
        with sessions.begin() as session:
            answers = [
                transitions.heartbeat(session, claimed.job_id, claimed.fence, 60),
                transitions.look(session, claimed.job_id, claimed.fence),
            ]
        assert all(isinstance(answer, Held) for answer in answers)
        return {answer.deadline_passed for answer in answers if isinstance(answer, Held)}

    with sessions.begin() as session:
        session.execute(update(Job).values(device_seconds=1000.0))
        insert_job(session, JobState.CANCELLED, Desired.CANCEL, kind="scoring", parent_id=claimed.job_id)
        # What goes on with a search, or has nothing to do with it, has a budget of its own.
        for other in ({"parent_id": claimed.job_id}, {"kind": "scoring"}):
            insert_job(session, JobState.SUCCEEDED, Desired.RUN, device_seconds=9000.0, **other)
    assert is_spent() == {False}
    with sessions.begin() as session:
        helper = insert_job(session, JobState.RUNNING, Desired.RUN, kind="scoring", parent_id=claimed.job_id)
        session.execute(update(Attempt).where(Attempt.job_id == helper).values(started_at=ago(2500)))
    assert is_spent() == {False}
    with sessions.begin() as session:
        session.execute(update(Attempt).where(Attempt.job_id == claimed.job_id).values(started_at=ago(101)))
    assert is_spent() == {True}


def ago(seconds: float) -> ColumnElement[datetime]:
    return func.now() - timedelta(seconds=seconds)
