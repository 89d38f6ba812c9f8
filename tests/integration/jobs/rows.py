"""Short words for what tests of transitions do to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Attempt, Job, JobEvent
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.values import Claim
from tests.jobs import new_job

Sessions = sessionmaker[Session]


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
        return list(session.scalars(select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)))


@contextmanager
def ended_by(sessions: Sessions, job_id: UUID) -> Iterator[None]:
    """Check that the body appends exactly one ``end``, and that it is the last event."""
    before = len(events(sessions, job_id))
    yield
    new = [event.type for event in events(sessions, job_id)[before:]]
    assert new.count(EventType.END) == 1
    assert new[-1] == EventType.END


def claim_one(sessions: Sessions, **changes: Any) -> Claim:
    enqueue(sessions, **changes)
    return claim(sessions)


def in_transaction(sessions: sessionmaker[Session], change: Callable[[Session], Any]) -> Any:
    with sessions.begin() as session:
        return change(session)


def event_types(sessions: sessionmaker[Session], claim: Claim) -> list[str]:
    with sessions() as session:
        query = select(JobEvent.type).where(JobEvent.job_id == claim.job_id, JobEvent.seq > 2).order_by(JobEvent.seq)
        return list(session.scalars(query))
