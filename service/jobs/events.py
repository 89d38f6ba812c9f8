"""The append-only history of a job: what event streams, logs of progress and audits read."""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from service.db.models import Job, JobEvent

JOB_CHANNEL = "vitailor_job"
"""PostgreSQL notification channel; the payload is the UUID of a job that has new events."""


class EventType(StrEnum):
    """What an event tells. Clients must ignore types that they do not know."""

    JOB_STATUS = "job.status"
    STAGE_PROGRESS = "stage.progress"
    METRIC = "metric"
    CANDIDATE = "candidate"  # how many new candidates of one generation, and the best few
    PARETO = "pareto"  # how the front has moved
    CHECKPOINT = "checkpoint"
    WARNING = "warning"
    LOG = "log"
    END = "end"


def append_event(session: Session, job_id: UUID, event_type: EventType, payload: dict[str, Any]) -> int:
    """Add an event to a job that exists and return its ``seq``, counted from 1 without gaps.

    The number is taken under the job row's lock, which the caller's transaction then holds: a reader that asks for
    ``seq > last`` therefore never skips an event that commits late, as it could with a database sequence.
    """
    seq, fence = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(last_seq=Job.last_seq + 1)
        .returning(Job.last_seq, Job.fence)
        .execution_options(synchronize_session=False)
    ).one()
    session.execute(insert(JobEvent).values(job_id=job_id, seq=seq, fence=fence, type=event_type, payload=payload))
    # Sent at commit, and once however many events a transaction adds: PostgreSQL drops equal notifications.
    session.execute(select(func.pg_notify(JOB_CHANNEL, str(job_id))))
    return int(seq)
