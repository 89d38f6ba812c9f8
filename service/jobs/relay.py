"""Relay and reaper: ``python -m service.jobs.relay``. Any number of copies may run, and each may die at any moment.

Each pass takes expired leases away, forgets silent workers, and rings for queued jobs. The job's row is its own
outbox: ``published_at`` says when a bell was rung for it, and a bell that nobody answered is rung again.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Never
from uuid import UUID

import structlog
from celery import Celery
from kombu.exceptions import OperationalError as BrokerDown
from sqlalchemy import CursorResult, delete, func, or_, select, update
from sqlalchemy.exc import OperationalError as DatabaseDown
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import ApplicationName, Timeouts, session_factory, sync_engine
from service.db.models import Job, JobState, Worker
from service.ids import IdKind, format_id
from service.jobs.doorbell import celery_app, count_waiting, ring
from service.jobs.transitions import reap_expired
from service.logs import configure_logging
from service.settings import Settings

log = structlog.get_logger(__name__)

_LONGEST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did."""

    reaped: int
    forgotten: int
    rung: int


class Relay:
    """The loop. It keeps nothing between passes."""

    def __init__(self, sessions: sessionmaker[Session], bell: Celery, settings: Settings) -> None:
        self._sessions = sessions
        self._bell = bell
        self._settings = settings

    def run(self) -> Never:
        """Pass after pass, less often while database or broker are down."""
        failures = 0
        while True:
            try:
                self.run_once()
                failures = 0
            except (DatabaseDown, BrokerDown) as error:
                failures += 1
                log.warning("relay_waits", failures=failures, error=str(error).splitlines()[0])
            except Exception:
                failures += 1
                log.exception("relay_pass_failed", failures=failures)
            time.sleep(min(self._settings.relay_interval_s * 2 ** min(failures, 10), _LONGEST_WAIT_S))

    def run_once(self) -> Pass:
        """One pass.

        Raises:
            sqlalchemy.exc.OperationalError: the database cannot be reached.
            kombu.exceptions.OperationalError: the broker cannot be reached; leases were reaped all the same.
        """
        with self._sessions.begin() as session:
            reaped = reap_expired(session, self._settings.retry_backoff_s)
        for job in reaped:
            log.warning("lease_expired", job=format_id(IdKind.JOB, job.job_id), fence=job.fence, state=job.state)
        with self._sessions.begin() as session:
            forgotten = self._forget_silent_workers(session)
        # Marked before it is sent: no row stays locked while a slow broker is spoken to, and a crash in between only
        # delays the bell until the next republication.
        with self._sessions.begin() as session:
            idle = self._idle_slots(session)
        unanswered = {queue: count_waiting(self._bell, queue) for queue in idle}
        with self._sessions.begin() as session:
            due = self._mark_due(session, idle, unanswered)
        self._ring_all(due)
        return Pass(len(reaped), forgotten, len(due))

    def _forget_silent_workers(self, session: Session) -> int:
        silent = delete(Worker).where(Worker.heartbeat_at < func.now() - timedelta(seconds=self._settings.lease_s))
        result = session.execute(silent)
        assert isinstance(result, CursorResult)
        return result.rowcount

    def _mark_due(self, session: Session, idle: Mapping[str, int], unanswered: Mapping[str, int]) -> dict[UUID, str]:
        """Jobs to ring for now, and their queues: no more than there are idle slots without a bell on its way.

        Without this cap, days of busy slots or of a deaf worker would pile up thousands of messages.

        Args:
            idle: slots without a job, by queue.
            unanswered: messages that wait in the broker, by queue.
        """
        republish_at = func.now() - timedelta(seconds=self._settings.republish_s)
        due: dict[UUID, str] = {}
        for queue, slots in idle.items():
            waiting = (
                Job.state == JobState.QUEUED,
                Job.queue == queue,
                or_(Job.not_before.is_(None), Job.not_before <= func.now()),
            )
            under_way = session.execute(
                select(func.count()).select_from(Job).where(*waiting, Job.published_at >= republish_at)
            ).scalar_one()
            jobs = session.scalars(
                select(Job.id)
                .where(*waiting, or_(Job.published_at.is_(None), Job.published_at < republish_at))
                .order_by(Job.priority.desc(), Job.id)
                .limit(max(0, slots - max(under_way, unanswered[queue])))
                .with_for_update(skip_locked=True)
            ).all()
            due |= dict.fromkeys(jobs, queue)
        self._set_published(session, list(due), published=True)
        return due

    def _idle_slots(self, session: Session) -> Counter[str]:
        living = Worker.heartbeat_at >= func.now() - timedelta(seconds=self._settings.lease_s)
        idle: Counter[str] = Counter()
        for worker in session.scalars(select(Worker).where(living, ~Worker.draining)):
            for queue in worker.queues:
                idle[queue] += max(0, worker.slots - worker.busy)
        return idle

    def _ring_all(self, due: dict[UUID, str]) -> None:
        waiting = dict(due)
        try:
            for job_id, queue in due.items():
                ring(self._bell, queue)
                del waiting[job_id]
        except BrokerDown:
            with self._sessions.begin() as session:
                self._set_published(session, list(waiting), published=False)
            raise

    def _set_published(self, session: Session, job_ids: list[UUID], *, published: bool) -> None:
        session.execute(
            update(Job)
            .where(Job.id.in_(job_ids), Job.state == JobState.QUEUED)
            .values(published_at=func.now() if published else None)
            .execution_options(synchronize_session=False)
        )


def _exit(_signal: int, _frame: FrameType | None) -> Never:
    # Wherever this interrupts the loop, the next copy goes on from the rows.
    raise SystemExit(0)


def main() -> None:
    """Run the relay of the configured database and broker until SIGTERM or SIGINT."""
    settings = Settings()
    configure_logging()
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, _exit)
    timeouts = Timeouts.within(settings.lease_s)
    engine = sync_engine(settings.database_url, ApplicationName.RELAY, pool_size=1, timeouts=timeouts)
    log.info("relay_started", interval_s=settings.relay_interval_s, republish_s=settings.republish_s)
    Relay(session_factory(engine), celery_app(settings.broker_url), settings).run()


if __name__ == "__main__":
    main()
