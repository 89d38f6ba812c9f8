"""Runs attempts of one job in this process, and looks at what they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select, text

from service.db.models import Job, JobEvent
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.values import Finished, Lost
from workers.context import WorkerContext
from workers.supervisor import supervise


class Bench:
    """Runs attempts of one job."""

    def __init__(self, context: WorkerContext, job: Job) -> None:
        self.context = context
        self.job_id = job.id

    def attempt(self) -> Finished | Lost:
        with self.context.sessions.begin() as session:
            session.execute(text("UPDATE job SET not_before = NULL"))
            claim = transitions.claim_next(session, ["cpu"], "test", self.context.settings.lease_s)
        assert claim is not None
        return supervise(self.context, claim)

    def act(self, action: Callable[..., Any]) -> None:
        with self.context.sessions.begin() as session:
            action(session, self.job_id)

    @property
    def job(self) -> Job:
        with self.context.sessions() as session:
            return session.get_one(Job, self.job_id)

    def rows(self, table: Any) -> list[Any]:
        with self.context.sessions() as session:
            key = table.__table__.primary_key.columns
            return list(session.scalars(select(table).where(table.job_id == self.job_id).order_by(*key)))

    def events(self, *types: EventType) -> list[JobEvent]:
        return [event for event in self.rows(JobEvent) if event.type in types]

    def reached(self, step: int) -> bool:
        return (self.job.progress.get("fraction") or 0) * 10 >= step - 0.5
