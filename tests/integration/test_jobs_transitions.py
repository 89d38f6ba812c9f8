"""The transitions against a real PostgreSQL: guards, races and what each leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory, sync_engine
from service.db.models import Attempt, Dataset, DatasetStatus, Desired, Job, JobEvent, JobKind, JobState
from service.embedded.servers import Servers
from service.jobs import transitions
from service.jobs.events import EventType, append_event, read_events
from service.jobs.states import RULES, Action, AttemptOutcome, Target, useful_actions
from service.jobs.values import Accepted, Claim, Finished, Held, Lost, Reaped, Refused
from tests.jobs import insert_job, new_job
from tests.servers import fresh_database

Sessions = sessionmaker[Session]

ERROR = {"code": "loss_diverged", "detail": "NaN"}
ACT: dict[Action, Callable[[Session, UUID], Accepted | Refused | None]] = {
    Action.CANCEL: transitions.request_cancel,
    Action.PAUSE: transitions.request_pause,
    Action.RESUME: transitions.resume,
    Action.RETRY: transitions.retry,
}


@pytest.fixture(scope="module")
def shared_engine(servers: Servers) -> Iterator[Engine]:
    with fresh_database(servers) as url:
        engine = sync_engine(url, "test", pool_size=12)
        yield engine
        engine.dispose()


@pytest.fixture
def sessions(shared_engine: Engine) -> Sessions:
    """Sessions on empty tables: a database of its own for each of so many tests would take most of their time."""
    with shared_engine.begin() as connection:
        connection.execute(text("TRUNCATE job, dataset CASCADE"))
    return session_factory(shared_engine)


def enqueue(sessions: Sessions, **changes: Any) -> UUID:
    with sessions.begin() as session:
        return transitions.enqueue(session, new_job(**changes)).id


def claim(sessions: Sessions, lease_s: float = 60.0, owner: str = "w/0") -> Claim:
    with sessions.begin() as session:
        claimed = transitions.claim_next(session, ["cpu"], owner, lease_s)
    assert claimed is not None
    return claimed


def expire(sessions: Sessions, job_id: UUID) -> None:
    """Make the lease run out now instead of waiting for it."""
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=func.now() - timedelta(seconds=1)))


def load(sessions: Sessions, job_id: UUID) -> Job:
    with sessions() as session:
        return session.get_one(Job, job_id)


def attempts(sessions: Sessions, job_id: UUID) -> list[Attempt]:
    with sessions() as session:
        return list(session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence)))


def events(sessions: Sessions, job_id: UUID) -> list[JobEvent]:
    with sessions() as session:
        return list(read_events(session, job_id, after=0, limit=1000))


@contextmanager
def ended_by(sessions: Sessions, job_id: UUID) -> Iterator[None]:
    """Check that the body appends exactly one ``end``, and that it is the last event."""
    before = len(events(sessions, job_id))
    yield
    new = [event.type for event in events(sessions, job_id)[before:]]
    assert new.count(EventType.END) == 1
    assert new[-1] == EventType.END


# --- user actions ---


@pytest.mark.parametrize(("state", "desired"), list(product(JobState, Desired)))
def test_user_actions_do_what_the_rules_say(sessions: Sessions, state: JobState, desired: Desired) -> None:
    for action, act in ACT.items():
        with sessions.begin() as session:
            job_id = insert_job(session, state, desired)
        with sessions.begin() as session:
            answer = act(session, job_id)
        after = load(sessions, job_id)
        target = RULES[state, desired].get(action)
        match answer:
            case Refused(allowed=allowed):
                assert target is None
                assert allowed == useful_actions(state, desired)
                assert (after.state, after.desired, after.revision) == (state, desired, 0)
            case Accepted(changed=changed):
                assert target == Target(JobState(after.state), Desired(after.desired))
                assert changed is (target != Target(state, desired))
                assert after.revision == int(changed)
                assert len(events(sessions, job_id)) == (0 if not changed else 2 if after.finished_at else 1)
            case None:
                pytest.fail("the job exists")


@pytest.mark.parametrize("action", list(Action))
def test_user_action_on_an_unknown_job(sessions: Sessions, action: Action) -> None:
    with sessions.begin() as session:
        assert ACT[action](session, UUID(int=0)) is None


def test_cancel_of_a_waiting_job_ends_it_at_once(sessions: Sessions) -> None:
    job_id = enqueue(sessions)
    with ended_by(sessions, job_id), sessions.begin() as session:
        transitions.request_cancel(session, job_id)
    with sessions.begin() as session:
        assert transitions.claim_next(session, ["cpu"], "w/0", 60) is None


def test_retry_forgives_failures_and_keeps_the_fence(sessions: Sessions) -> None:
    job_id = enqueue(sessions, max_failures=1)
    first = claim(sessions)
    with sessions.begin() as session:
        transitions.finish_failed(session, job_id, first.fence, error=ERROR, retryable=True, backoff_s=1)
    with sessions.begin() as session:
        assert isinstance(transitions.retry(session, job_id), Accepted)
    job = load(sessions, job_id)
    assert (job.state, job.failures, job.error, job.finished_at) == (JobState.QUEUED, 0, None, None)
    assert claim(sessions).fence == first.fence + 1


# --- claims ---


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


def claim_one(sessions: Sessions, **changes: Any) -> Claim:
    enqueue(sessions, **changes)
    return claim(sessions)


# --- heartbeats ---


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


# --- ends ---


def finishers(fence: int) -> list[Callable[[Session, UUID], Finished | Lost]]:
    return [
        lambda s, j: transitions.finish_succeeded(s, j, fence, result={}),
        lambda s, j: transitions.finish_stopped(s, j, fence),
        lambda s, j: transitions.finish_failed(s, j, fence, error=ERROR, retryable=True, backoff_s=1),
    ]


def test_success_ends_the_job(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    with ended_by(sessions, claimed.job_id), sessions.begin() as session:
        finished = transitions.finish_succeeded(
            session, claimed.job_id, claimed.fence, result={"best": 1}, stop_reason="budget"
        )
    assert finished == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    job = load(sessions, claimed.job_id)
    assert (job.result, job.stop_reason, job.lease_until) == ({"best": 1}, "budget", None)
    [attempt] = attempts(sessions, claimed.job_id)
    assert (attempt.outcome, attempt.exit_code) == (AttemptOutcome.SUCCEEDED, 0)
    assert attempt.ended_at is not None
    assert job.device_seconds == pytest.approx((attempt.ended_at - attempt.started_at).total_seconds())


@pytest.mark.parametrize(
    ("desired", "state", "outcome"),
    [
        (Desired.RUN, JobState.QUEUED, AttemptOutcome.PREEMPTED),
        (Desired.PAUSE, JobState.PAUSED, AttemptOutcome.PAUSED),
        (Desired.CANCEL, JobState.CANCELLED, AttemptOutcome.CANCELLED),
    ],
)
def test_a_planned_stop_follows_the_wish_and_costs_no_failure(
    sessions: Sessions, desired: Desired, state: JobState, outcome: AttemptOutcome
) -> None:
    with sessions.begin() as session:
        job_id = insert_job(session, JobState.RUNNING, desired)
    with sessions.begin() as session:
        assert transitions.finish_stopped(session, job_id, 1, exit_code=75) == Finished(outcome, state)
    job = load(sessions, job_id)
    assert (job.state, job.failures, job.not_before) == (state, 0, None)


@pytest.mark.parametrize(
    ("desired", "failures", "retryable", "state"),
    [
        (Desired.RUN, 0, True, JobState.QUEUED),
        (Desired.RUN, 2, True, JobState.FAILED),
        (Desired.RUN, 0, False, JobState.FAILED),
        (Desired.PAUSE, 0, True, JobState.PAUSED),
        (Desired.PAUSE, 0, False, JobState.FAILED),
        (Desired.CANCEL, 0, True, JobState.CANCELLED),
        (Desired.CANCEL, 2, True, JobState.CANCELLED),
    ],
)
def test_a_failure_is_counted_and_follows_wish_and_count(
    sessions: Sessions, desired: Desired, failures: int, retryable: bool, state: JobState
) -> None:
    with sessions.begin() as session:
        job_id = insert_job(session, JobState.RUNNING, desired, failures=failures)
    with sessions.begin() as session:
        finished = transitions.finish_failed(
            session, job_id, 1, error=ERROR, retryable=retryable, backoff_s=8, exit_code=1
        )
    assert finished == Finished(AttemptOutcome.FAILED, state)
    job = load(sessions, job_id)
    assert (job.state, job.failures) == (state, failures + 1)
    assert job.error == (ERROR if state is JobState.FAILED else None)
    assert (job.not_before is not None) is (state is JobState.QUEUED)
    assert attempts(sessions, job_id)[0].error == ERROR


@pytest.mark.parametrize(("failures", "wait_s"), [(0, 8), (1, 16), (3, 64), (20, 300)])
def test_backoff_doubles_up_to_five_minutes(sessions: Sessions, failures: int, wait_s: float) -> None:
    with sessions.begin() as session:
        job_id = insert_job(session, JobState.RUNNING, Desired.RUN, failures=failures, max_failures=100)
    with sessions.begin() as session:
        transitions.finish_failed(session, job_id, 1, error=ERROR, retryable=True, backoff_s=8)
        waits = session.execute(select(Job.not_before - func.now())).scalar_one()
    assert waits == timedelta(seconds=wait_s)


@pytest.mark.parametrize("first", range(3))
def test_repeating_or_contradicting_a_finish_changes_nothing(sessions: Sessions, first: int) -> None:
    claimed = claim_one(sessions)
    with sessions.begin() as session:
        finished = finishers(claimed.fence)[first](session, claimed.job_id)
    revision = load(sessions, claimed.job_id).revision
    for again in finishers(claimed.fence):
        with sessions.begin() as session:
            assert again(session, claimed.job_id) == finished
    assert load(sessions, claimed.job_id).revision == revision


def test_a_fenced_out_owner_changes_nothing(sessions: Sessions) -> None:
    old = claim_one(sessions)
    expire(sessions, old.job_id)
    with sessions.begin() as session:
        transitions.reap_expired(session, backoff_s=0)
    new = claim(sessions, owner="w/1")
    before = load(sessions, old.job_id)
    with sessions.begin() as session:
        for finish in finishers(old.fence):
            assert finish(session, old.job_id) == Lost()
        assert transitions.heartbeat(session, old.job_id, old.fence, 60, {"rss_bytes": 1}) == Lost()
        assert transitions.look(session, old.job_id, old.fence) == Lost()
        assert transitions.lock_owned(session, old.job_id, old.fence) is None
    after = load(sessions, old.job_id)
    assert (after.revision, after.lease_until, after.fence) == (before.revision, before.lease_until, new.fence)


# --- the reaper ---


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


# --- imports ---


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_an_import_that_ends_without_success_rejects_its_dataset(sessions: Sessions, how: str) -> None:
    with sessions.begin() as session:
        dataset = Dataset(owner="ada", name="mine", version=1, source={})
        session.add(dataset)
    job_id = enqueue(sessions, kind=JobKind.DATASET_IMPORT, dataset_id=dataset.id)
    if how == "cancel":
        with sessions.begin() as session:
            transitions.request_cancel(session, job_id)
    else:
        claimed = claim(sessions)
        with sessions.begin() as session:
            transitions.finish_failed(session, job_id, claimed.fence, error=ERROR, retryable=False, backoff_s=1)
    with sessions() as session:
        row = session.get_one(Dataset, dataset.id)
        assert row.status == DatasetStatus.REJECTED
        assert row.error is not None
        assert row.error["code"] == {"cancel": "dataset_invalid", "fail": "loss_diverged"}[how]
    with sessions.begin() as session:
        transitions.retry(session, job_id)
    with sessions() as session:
        row = session.get_one(Dataset, dataset.id)
        assert (row.status, row.error) == (DatasetStatus.VALIDATING, None)


# --- events ---


def test_events_are_numbered_without_gaps_under_concurrency(sessions: Sessions) -> None:
    job_id = enqueue(sessions)

    def append(n: int) -> int:
        with sessions.begin() as session:
            return append_event(session, job_id, EventType.LOG, {"n": n})

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(append, range(40)))
    assert sorted(numbers) == list(range(2, 42))
    with sessions() as session:
        page = read_events(session, job_id, after=10, limit=5)
    assert [event.seq for event in page] == [11, 12, 13, 14, 15]


def test_events_carry_the_fence_of_their_attempt(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    with sessions.begin() as session:
        append_event(session, claimed.job_id, EventType.LOG, {})
        append_event(session, claimed.job_id, EventType.LOG, {}, fence=0)
    assert [event.fence for event in events(sessions, claimed.job_id)] == [0, 1, 1, 0]
