"""Turns what a trainer reports into rows and events, in batches of at most one transaction a second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, assert_never
from uuid import UUID

from psycopg.types.json import Jsonb
from sqlalchemy import ARRAY, Integer, any_, delete, func, literal, select, update
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.db.copy import copy_rows
from service.db.models import Attempt, Candidate, FrontMember, Job
from service.jobs.events import EventType, append_event
from service.jobs.transitions import lock_owned
from service.jobs.values import Claim, Lost
from workers.protocol import CandidateRow, Candidates, Metric, Progress, Started, Warn

Json = dict[str, Any]
Report = Started | Progress | Metric | Warn | Candidates

BATCH_S = 1.0
"""Every transaction with events notifies listeners once, and each notifying commit takes a lock on the whole server."""

_MOST_REPORTS = 500

_COLUMNS = tuple(CandidateRow.model_fields)

_BEST_IN_EVENT = 5
_NEWEST_IN_EVENT = 20
"""Events are history that is kept and streams that people watch; the lists themselves are read page by page."""


class Recorder:
    """Collects reports. Belongs to one thread.

    Args:
        write: runs a change in a transaction and repeats it while the database is away.
    """

    def __init__(self, claim: Claim, write: Callable[[Callable[[Session], Lost | None]], Lost | None]) -> None:
        self._claim = claim
        self._write = write
        self._reports: list[Report] = []
        self._due_at = time.monotonic()

    @property
    def wait_s(self) -> float:
        """Seconds until :meth:`flush_if_due` may have something to do."""
        return max(0.0, self._due_at - time.monotonic()) if self._reports else BATCH_S

    def add(self, report: Report) -> None:
        """Keep a report for the next batch. Of progress within one stage only the latest counts."""
        last = self._reports[-1] if self._reports else None
        if isinstance(report, Progress) and isinstance(last, Progress) and report.stage == last.stage:
            self._reports.pop()
        self._reports.append(report)

    def flush_if_due(self) -> None:
        """Write the batch when its time has come: at once after a silence, else a second after the one before."""
        if self.wait_s == 0 or len(self._reports) >= _MOST_REPORTS:
            self.flush()

    def flush(self) -> None:
        """Write everything now: whatever is written next must come after it."""
        if self._reports:
            reports, self._reports = self._reports, []
            self._write(lambda session: record(session, self._claim, reports))
            self._due_at = time.monotonic() + BATCH_S


def record(session: Session, claim: Claim, reports: Sequence[Report]) -> Lost | None:
    """Write reports of an attempt, in order."""
    job = lock_owned(session, claim.job_id, claim.fence)
    if job is None:
        return Lost()
    for report in reports:
        match report:
            case Started():
                _record_started(session, claim, report)
            case Progress():
                _record_progress(session, job, report)
            case Metric():
                append_event(session, job.id, EventType.METRIC, report.model_dump(mode="json", exclude={"type"}))
            case Warn():
                warn(session, job, report.code, report.detail)
            case Candidates():
                record_candidates(session, job, report)
            case _:
                assert_never(report)
    job.revision += 1
    return None


def warn(session: Session, job: Job, code: str, detail: str) -> None:
    """Add a warning to a job whose row is locked."""
    warning = {"code": code, "detail": detail}
    if warning not in job.warnings:
        job.warnings = [*job.warnings, warning]
        append_event(session, job.id, EventType.WARNING, warning)


def record_candidates(session: Session, job: Job, batch: Candidates) -> None:
    """Insert candidates that are new and let the Pareto front move; events tell how many and the best few.

    A resumed search sends some of them again: those rows and events exist and stay as they are.
    """
    new = _new_rows(session, job, batch.rows)
    copy_rows(session, Candidate.__tablename__, ("job_id", *_COLUMNS), (_values(job.id, row) for row in new))
    generations: defaultdict[int, list[CandidateRow]] = defaultdict(list)
    for row in new:
        generations[row.generation].append(row)
    for generation, rows in generations.items():
        append_event(session, job.id, EventType.CANDIDATE, {"generation": generation, **_summary(rows)})
    _move_front(session, job, batch)


def _new_rows(session: Session, job: Job, rows: Sequence[CandidateRow]) -> list[CandidateRow]:
    """Those that the job does not have; the lock on the job's row keeps it so."""
    if not rows:
        return []
    sent = {row.n: row for row in rows}
    known = select(Candidate.n).where(Candidate.job_id == job.id, Candidate.n.between(min(sent), max(sent)))
    for n in session.scalars(known):
        sent.pop(n, None)
    return list(sent.values())


def _values(job_id: UUID, row: CandidateRow) -> tuple[object, ...]:
    fields = [getattr(row, name) for name in _COLUMNS]
    return job_id, *(Jsonb(value) if isinstance(value, dict) else value for value in fields)


def _summary(rows: Sequence[CandidateRow]) -> Json:
    """What an event tells of new candidates: its size does not depend on their number."""
    offered = [row for row in rows if row.feasible and row.score is not None]
    best = sorted(offered, key=lambda row: (-(row.score or 0.0), row.n))[:_BEST_IN_EVENT]
    return {
        "count": len(rows),
        "scored": sum(row.score is not None for row in rows),
        "feasible": sum(row.feasible for row in rows),
        "evaluated": max(row.n for row in rows) + 1,
        "best": [row.model_dump(mode="json", include={"n", "genotype", "score", "costs"}) for row in best],
    }


def _move_front(session: Session, job: Job, batch: Candidates) -> None:
    if not (batch.joined or batch.left or batch.anew):
        return
    # One array and not one parameter for each member, of which a statement can have 65,535.
    joined = literal(batch.joined, ARRAY(Integer))
    leaves = (
        FrontMember.n.not_in(select(func.unnest(joined)))
        if batch.anew
        else FrontMember.n == any_(literal(batch.left, ARRAY(Integer)))
    )
    gone = session.scalars(
        delete(FrontMember)
        .where(FrontMember.job_id == job.id, leaves)
        .returning(FrontMember.n)
        .execution_options(synchronize_session=False)
    ).all()
    members = select(literal(job.id, PgUUID), func.unnest(joined))
    statement = insert(FrontMember).from_select(["job_id", "n"], members).on_conflict_do_nothing()
    come = session.scalars(statement.returning(FrontMember.n)).all()
    if not (come or gone):
        return
    size = session.scalar(select(func.count()).select_from(FrontMember).where(FrontMember.job_id == job.id))
    newest = sorted(come, reverse=True)[:_NEWEST_IN_EVENT]
    moved = {"size": size, "joined": len(come), "left": len(gone), "newest": newest}
    append_event(session, job.id, EventType.PARETO, moved)


def _record_started(session: Session, claim: Claim, report: Started) -> None:
    session.execute(
        update(Attempt)
        .where(Attempt.job_id == claim.job_id, Attempt.fence == claim.fence)
        .values(info=Attempt.info.op("||")({"versions": report.versions}))
        .execution_options(synchronize_session=False)
    )


def _record_progress(session: Session, job: Job, report: Progress) -> None:
    progress = report.model_dump(mode="json", exclude={"type"})
    job.stage, job.progress = report.stage, progress
    append_event(session, job.id, EventType.STAGE_PROGRESS, progress)
