"""Jobs for tests: small specs and rows in any state."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.db.models import TERMINAL_STATES, Attempt, Desired, Job, JobKind, JobState
from service.jobs.values import NewJob
from workers.child import TrainerCommand

TRAINER = TrainerCommand((sys.executable, str(Path(__file__).with_name("trainer.py"))))
"""Counts instead of training, see there."""


def counting_job(**spec: Any) -> NewJob:
    """A job for the counting trainer."""
    return new_job(spec={"dataset": {"id": "digits"}, **spec})


def new_job(**changes: Any) -> NewJob:
    """A small valid request."""
    values: dict[str, Any] = {
        "owner": "ada",
        "kind": JobKind.SEARCH,
        "name": "test",
        "spec": {"method": "masktas"},
        "queue": "cpu",
        "seed": 0,
    }
    return NewJob(**(values | changes))


def insert_job(session: Session, state: JobState, desired: Desired, **changes: Any) -> UUID:
    """A row in the given state, as consistent as the table demands, with the attempt that a running one has."""
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "owner": "ada",
        "kind": JobKind.SEARCH,
        "name": "test",
        "spec": {},
        "queue": "cpu",
        "seed": 0,
        "state": state,
        "desired": desired,
    }
    if state is JobState.RUNNING:
        values |= {"lease_owner": "w", "lease_until": now, "fence": 1, "attempts": 1, "heartbeat_at": now}
    if state in TERMINAL_STATES:
        values |= {"finished_at": now}
    job = Job(**(values | changes))
    session.add(job)
    session.flush()
    if state is JobState.RUNNING:
        session.add(Attempt(job_id=job.id, fence=job.fence, worker="w"))
        session.flush()
    return job.id
