"""Every change of ``job.state``, one function each. No other code assigns it.

All functions take a sync ``Session`` and never commit: the API calls them through ``AsyncSession.run_sync``, relay and
workers directly. Each locks the job's row, compares, then sets; the lock spans both. A lost race, a repetition and a
refusal are ordinary values. The owner of a lease names its ``fence``; once the job's fence is another, whatever the
old owner asks for is answered with :class:`~service.jobs.values.Lost` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from service.db.models import (
    TERMINAL_STATES,
    Attempt,
    Dataset,
    DatasetStatus,
    Desired,
    Job,
    JobKind,
    JobState,
)
from service.db.shard_models import Shard
from service.errors import DatasetInvalid, WorkerLost
from service.ids import IdKind, format_id
from service.jobs.budgets import deadline, is_spent
from service.jobs.events import EventType, append_event
from service.jobs.retries import most_attempts, retries
from service.jobs.states import RULES, Action, AttemptOutcome, shown_status, useful_actions
from service.jobs.values import Accepted, Claim, Finished, Held, Lost, NewJob, Reaped, Refused

Json = dict[str, Any]

_LONGEST_BACKOFF_S = 300.0


def enqueue(session: Session, new: NewJob) -> Job:
    """Insert a queued job. The relay finds it once the caller has committed."""
    job = Job(
        owner=new.owner,
        kind=new.kind,
        name=new.name,
        spec=new.spec,
        meta=new.meta,
        dataset_id=new.dataset_id,
        parent_id=new.parent_id,
        queue=new.queue,
        priority=new.priority,
        seed=new.seed,
        max_failures=new.max_failures,
        state=JobState.QUEUED,
        desired=Desired.RUN,
    )
    session.add(job)
    session.flush()
    session.refresh(job)
    _tell_status(session, job, reason="created")
    session.refresh(job)
    return job


def claim_next(
    session: Session, queues: Sequence[str], owner: str, lease_s: float, info: Json | None = None
) -> Claim | None:
    """Take the first waiting job of the queues, by priority, then age. None when there is nothing to do.

    Args:
        owner: who holds the lease, unique per slot of a worker.
        info: facts about the attempt (host, device, threads) to keep with it.
    """
    job = session.scalars(
        select(Job)
        .where(
            Job.state == JobState.QUEUED,
            Job.queue.in_(queues),
            or_(Job.not_before.is_(None), Job.not_before <= func.now()),
        )
        .order_by(Job.priority.desc(), Job.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if job is None:
        return None
    job.state = JobState.RUNNING
    job.fence += 1
    job.attempts += 1
    job.lease_owner = owner
    job.lease_until = func.now() + timedelta(seconds=lease_s)
    job.heartbeat_at = func.now()
    job.started_at = func.coalesce(Job.started_at, func.now())
    job.deadline_at = deadline(job)
    session.flush()
    session.execute(insert(Attempt).values(job_id=job.id, fence=job.fence, worker=owner, info=info or {}))
    _tell_status(session, job, reason="claimed")
    return Claim(
        job_id=job.id,
        fence=job.fence,
        attempt=job.attempts,
        owner=job.owner,
        kind=JobKind(job.kind),
        spec=job.spec,
        seed=job.seed,
        dataset_id=job.dataset_id,
    )


def heartbeat(session: Session, job_id: UUID, fence: int, lease_s: float, facts: Json | None = None) -> Held | Lost:
    """Extend the lease and learn what is desired. ``facts`` (memory, for one) are kept with the attempt."""
    row = session.execute(
        update(Job)
        .where(*_owned(job_id, fence))
        .values(lease_until=func.now() + timedelta(seconds=lease_s), heartbeat_at=func.now())
        .returning(Job.desired, is_spent())
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is None:
        return Lost()
    if facts:
        session.execute(
            update(Attempt)
            .where(Attempt.job_id == job_id, Attempt.fence == fence)
            .values(info=Attempt.info.op("||")(facts))
            .execution_options(synchronize_session=False)
        )
    return Held(Desired(row[0]), row[1])


def look(session: Session, job_id: UUID, fence: int) -> Held | Lost:
    """Learn what is desired without extending the lease."""
    row = session.execute(select(Job.desired, is_spent()).where(*_owned(job_id, fence))).one_or_none()
    return Lost() if row is None else Held(Desired(row[0]), row[1])


def lock_owned(session: Session, job_id: UUID, fence: int) -> Job | None:
    """The job's row, locked until the transaction ends; None when the lease is no longer the caller's.

    Every write that an attempt makes beside the transitions goes through this first.
    """
    return _locked(session, *_owned(job_id, fence))


def finish_succeeded(
    session: Session, job_id: UUID, fence: int, *, result: Json, stop_reason: str | None = None, exit_code: int = 0
) -> Finished | Lost:
    """End the job with its result. The caller adds the result's rows to the same transaction."""
    job = lock_owned(session, job_id, fence)
    if job is None:
        return _earlier_finish(session, job_id, fence)
    job.result = result
    job.stop_reason = stop_reason
    _close_attempt(session, job, AttemptOutcome.SUCCEEDED, exit_code=exit_code)
    return _leave_running(session, job, JobState.SUCCEEDED, AttemptOutcome.SUCCEEDED)


def finish_stopped(session: Session, job_id: UUID, fence: int, *, exit_code: int | None = None) -> Finished | Lost:
    """The trainer stopped because it was asked to. What follows is what is desired now; no failure is counted."""
    job = lock_owned(session, job_id, fence)
    if job is None:
        return _earlier_finish(session, job_id, fence)
    state, outcome = {
        Desired.CANCEL: (JobState.CANCELLED, AttemptOutcome.CANCELLED),
        Desired.PAUSE: (JobState.PAUSED, AttemptOutcome.PAUSED),
        Desired.RUN: (JobState.QUEUED, AttemptOutcome.PREEMPTED),
    }[Desired(job.desired)]
    _close_attempt(session, job, outcome, exit_code=exit_code)
    return _leave_running(session, job, state, outcome)


def finish_failed(
    session: Session,
    job_id: UUID,
    fence: int,
    *,
    error: Json,
    retryable: bool,
    backoff_s: float,
    exit_code: int | None = None,
) -> Finished | Lost:
    """The attempt failed: try again after a while, or give up for good.

    Args:
        error: ``ServiceError.to_json`` of what went wrong.
        retryable: False when another attempt must end the same way.
        backoff_s: wait before the second attempt; doubled for each further failure, at most five minutes.
    """
    job = lock_owned(session, job_id, fence)
    if job is None:
        return _earlier_finish(session, job_id, fence)
    _close_attempt(session, job, AttemptOutcome.FAILED, exit_code=exit_code, error=error)
    state = _count_failure(session, job, retryable, backoff_s)
    return _leave_running(session, job, state, AttemptOutcome.FAILED, error)


def reap_expired(session: Session, backoff_s: float, limit: int = 100) -> list[Reaped]:
    """Take running jobs away from owners whose lease ran out. Safe to run in several processes at once."""
    jobs = session.scalars(
        select(Job)
        .where(Job.state == JobState.RUNNING, Job.lease_until < func.now())
        .order_by(Job.lease_until)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).all()
    return [_reap(session, job, backoff_s) for job in jobs]


def request_cancel(session: Session, job_id: UUID) -> Accepted | Refused | None:
    """Cancel the job: at once while nobody runs it, else by way of its owner. None: no such job."""
    return _act(session, job_id, Action.CANCEL)


def request_pause(session: Session, job_id: UUID) -> Accepted | Refused | None:
    """Pause the job: at once while nobody runs it, else by way of its owner. None: no such job."""
    return _act(session, job_id, Action.PAUSE)


def resume(session: Session, job_id: UUID) -> Accepted | Refused | None:
    """Queue a paused job again, or take back a wish to pause. None: no such job."""
    return _act(session, job_id, Action.RESUME)


def retry(session: Session, job_id: UUID) -> Accepted | Refused | None:
    """Queue a failed or cancelled job again; it goes on from its last checkpoint. None: no such job."""
    return _act(session, job_id, Action.RETRY)


def _act(session: Session, job_id: UUID, action: Action) -> Accepted | Refused | None:
    job = _locked(session, Job.id == job_id)
    if job is None:
        return None
    state, desired = JobState(job.state), Desired(job.desired)
    target = RULES[state, desired].get(action)
    if target is None:
        return Refused(job, action, useful_actions(state, desired))
    if (target.state, target.desired) == (state, desired):
        return Accepted(job, changed=False)
    job.state, job.desired = target.state, target.desired
    if target.state is JobState.QUEUED:
        job.failures = 0
        job.error = job.stop_reason = job.not_before = job.published_at = job.finished_at = None
        if job.kind == JobKind.DATASET_IMPORT:
            _settle_dataset(session, job, DatasetStatus.VALIDATING, None)
    if target.state is JobState.CANCELLED:
        job.finished_at = func.now()
    session.flush()
    _tell_status(session, job, reason=action)
    session.refresh(job)
    return Accepted(job, changed=True)


def _reap(session: Session, job: Job, backoff_s: float) -> Reaped:
    lost_fence = job.fence
    facts = session.execute(
        select(Attempt.info).where(Attempt.job_id == job.id, Attempt.fence == lost_fence)
    ).scalar_one()
    error = WorkerLost(
        f"Worker {job.lease_owner} went silent in stage {job.stage or 'start'} of attempt {job.attempts}: "
        "it was killed, ran out of memory or lost its machine.",
        extra={"last_known": {"stage": job.stage, "progress": job.progress, **facts}},
    ).to_json()
    _close_attempt(session, job, AttemptOutcome.LOST, ended_at=job.heartbeat_at, error=error)
    job.fence += 1  # from now on everything that the lost owner writes is refused
    state = _count_failure(session, job, retries(job.spec, WorkerLost.code), backoff_s)
    _leave_running(session, job, state, AttemptOutcome.LOST, error)
    return Reaped(job.id, lost_fence, state)


def _count_failure(session: Session, job: Job, retryable: bool, backoff_s: float) -> JobState:
    """What a job becomes after a failed attempt. A wish to cancel or pause goes before another attempt."""
    job.failures += 1
    if job.desired == Desired.CANCEL:
        return JobState.CANCELLED
    if not retryable or job.failures >= job.max_failures or _attempts_used_up(session, job):
        return JobState.FAILED
    if job.desired == Desired.PAUSE:
        return JobState.PAUSED
    wait_s = min(backoff_s * 2 ** (job.failures - 1), _LONGEST_BACKOFF_S)
    job.not_before = func.now() + timedelta(seconds=wait_s)
    return JobState.QUEUED


def _attempts_used_up(session: Session, job: Job) -> bool:
    """Whether so many attempts came to nothing that the job ends, whatever they achieved on the way."""
    limit = most_attempts(job.spec)
    if limit is None:
        return False
    failed = select(func.count()).where(
        Attempt.job_id == job.id, Attempt.outcome.in_([AttemptOutcome.FAILED, AttemptOutcome.LOST])
    )
    return (session.scalar(failed) or 0) >= limit


def _leave_running(
    session: Session, job: Job, state: JobState, outcome: AttemptOutcome, error: Json | None = None
) -> Finished:
    job.state = state
    job.lease_owner = job.lease_until = job.published_at = job.deadline_at = None
    if state in TERMINAL_STATES:
        job.finished_at = func.now()
    if state is JobState.FAILED:
        job.error = error
    session.flush()
    _tell_status(session, job, reason=outcome, error=error)
    if job.kind == JobKind.SEARCH:
        _dismiss_helpers(session, job)
    return Finished(outcome, state)


def _dismiss_helpers(session: Session, job: Job) -> None:
    """End what helped the attempt that is over; the next one seeks helpers of its own."""
    helpers = select(Job.id).where(
        Job.parent_id == job.id, Job.kind == JobKind.SCORING, Job.state.not_in(TERMINAL_STATES)
    )
    for helper_id in session.scalars(helpers.order_by(Job.id)).all():
        _act(session, helper_id, Action.CANCEL)
    # After the helpers, as whoever hands in a result locks the helper first.
    session.execute(delete(Shard).where(Shard.job_id == job.id).execution_options(synchronize_session=False))


def _tell_status(session: Session, job: Job, reason: str, error: Json | None = None) -> None:
    """Write the events of a change, last of all ``end`` when there is nothing to come."""
    job.revision += 1
    status = shown_status(JobState(job.state), Desired(job.desired))
    payload: Json = {"status": status, "reason": reason, "attempt": job.attempts, "failures": job.failures}
    append_event(session, job.id, EventType.JOB_STATUS, payload | ({"error": error} if error else {}))
    if job.state not in TERMINAL_STATES:
        return
    append_event(session, job.id, EventType.END, {"status": status})
    if job.kind == JobKind.DATASET_IMPORT and job.state != JobState.SUCCEEDED:
        cancelled = DatasetInvalid(f"The import {format_id(IdKind.JOB, job.id)} was cancelled; retry it to import.")
        _settle_dataset(session, job, DatasetStatus.REJECTED, job.error or cancelled.to_json())


def _settle_dataset(session: Session, job: Job, status: DatasetStatus, error: Json | None) -> None:
    """The dataset of an import shares its job's fate. Its success is written with the result, by the worker."""
    session.execute(
        update(Dataset)
        .where(Dataset.id == job.dataset_id)
        .values(status=status, error=error, report=(error or {}).get("report"))
        .execution_options(synchronize_session=False)
    )


def _close_attempt(
    session: Session,
    job: Job,
    outcome: AttemptOutcome,
    *,
    ended_at: Any = None,
    exit_code: int | None = None,
    error: Json | None = None,
) -> None:
    used_s = session.execute(
        update(Attempt)
        .where(Attempt.job_id == job.id, Attempt.fence == job.fence)
        .values(ended_at=ended_at or func.now(), outcome=outcome, exit_code=exit_code, error=error)
        .returning(func.extract("epoch", Attempt.ended_at - Attempt.started_at))
        .execution_options(synchronize_session=False)
    ).scalar_one()
    job.device_seconds += float(used_s)


def _earlier_finish(session: Session, job_id: UUID, fence: int) -> Finished | Lost:
    """Whether this attempt was finished before: a commit whose answer got lost is repeated by the worker."""
    row = session.execute(
        select(Attempt.outcome, Job.state)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.job_id == job_id, Attempt.fence == fence)
    ).one_or_none()
    if row is None or row[0] is None or row[0] == AttemptOutcome.LOST:
        return Lost()
    return Finished(AttemptOutcome(row[0]), JobState(row[1]))


def _owned(job_id: UUID, fence: int) -> tuple[ColumnElement[bool], ...]:
    return Job.id == job_id, Job.fence == fence, Job.state == JobState.RUNNING


def _locked(session: Session, *conditions: ColumnElement[bool]) -> Job | None:
    return session.scalars(
        select(Job).where(*conditions).with_for_update().execution_options(populate_existing=True)
    ).one_or_none()
