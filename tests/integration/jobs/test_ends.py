"""How attempts end, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Dataset, DatasetStatus, Desired, Job, JobKind, JobState
from service.jobs import transitions
from service.jobs.states import AttemptOutcome
from service.jobs.values import Finished, Lost
from tests.integration.jobs.rows import attempts, claim, claim_one, ended_by, enqueue, expire, load
from tests.jobs import insert_job

Sessions = sessionmaker[Session]

ERROR = {"code": "loss_diverged", "detail": "NaN"}


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


def test_a_job_ends_after_its_most_attempts_whatever_they_achieved(sessions: Sessions) -> None:
    """Checkpoints forgive failures, so a job that always breaks a little later could go on for ever."""
    job_id = enqueue(sessions, max_failures=3, spec={"retry": {"max_attempts": 2}})
    states = []
    for _ in range(4):
        fence = claim(sessions).fence
        with sessions.begin() as session:
            session.get_one(Job, job_id).failures = 0  # as a checkpoint does
        with sessions.begin() as session:
            if fence % 2:  # a planned stop
                transitions.finish_stopped(session, job_id, fence)
            else:
                transitions.finish_failed(session, job_id, fence, error=ERROR, retryable=True, backoff_s=0)
        states.append(load(sessions, job_id).state)
    assert states == [JobState.QUEUED] * 3 + [JobState.FAILED]


def test_each_retry_by_hand_is_one_more_attempt(sessions: Sessions) -> None:
    job_id = enqueue(sessions, spec={"retry": {"max_attempts": 1}})
    for _ in range(2):
        fence = claim(sessions).fence
        with sessions.begin() as session:
            transitions.finish_failed(session, job_id, fence, error=ERROR, retryable=True, backoff_s=0)
        assert load(sessions, job_id).state == JobState.FAILED
        with sessions.begin() as session:
            transitions.retry(session, job_id)
        assert load(sessions, job_id).state == JobState.QUEUED


def test_a_lost_worker_ends_a_job_that_does_not_retry_for_it(sessions: Sessions) -> None:
    claimed = claim_one(sessions, spec={"retry": {"on": ["gpu_oom"]}})
    expire(sessions, claimed.job_id)
    with sessions.begin() as session:
        [reaped] = transitions.reap_expired(session, backoff_s=0)
    assert reaped.state == JobState.FAILED
    error = load(sessions, claimed.job_id).error
    assert error is not None
    assert (error["code"], error["retryable"]) == ("worker_lost", True)


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
