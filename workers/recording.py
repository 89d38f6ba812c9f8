"""Turns what a trainer reports into rows and events, in batches of at most one transaction a second."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from sqlalchemy import ARRAY, Integer, any_, literal, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.db.models import Attempt, Candidate, Job
from service.jobs.events import EventType, append_event
from service.jobs.transitions import lock_owned
from service.jobs.values import Claim, Lost
from workers.protocol import CandidateRow, Candidates, Metric, Progress, Started, Warn

Json = dict[str, Any]
Report = Started | Progress | Metric | Warn | Candidates

BATCH_S = 1.0
"""Every transaction with events notifies listeners once, and each notifying commit takes a lock on the whole server."""

_MOST_REPORTS = 500


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
    """Insert candidates that are new, one event a generation, and mark the Pareto front.

    A resumed search sends some of them again: those rows and events exist and stay as they are.
    """
    new = _insert_candidates(session, job, batch.rows)
    generations: defaultdict[int, list[Json]] = defaultdict(list)
    for row in batch.rows:
        if row.n in new:
            generations[row.generation].append(
                row.model_dump(mode="json", include={"n", "genotype", "score", "costs", "feasible"})
            )
    for generation, candidates in generations.items():
        payload = {"generation": generation, "candidates": candidates}
        append_event(session, job.id, EventType.CANDIDATE, payload)
    # One array and not one parameter for each member, of which a statement can have 65,535.
    is_member = Candidate.n == any_(literal(batch.front, ARRAY(Integer)))
    moved = session.execute(
        update(Candidate)
        .where(Candidate.job_id == job.id, Candidate.on_front != is_member)
        .values(on_front=~Candidate.on_front)
        .returning(Candidate.n)
        .execution_options(synchronize_session=False)
    ).all()
    if moved:
        append_event(session, job.id, EventType.PARETO, {"front": batch.front})


def _insert_candidates(session: Session, job: Job, rows: Sequence[CandidateRow]) -> set[int]:
    if not rows:
        return set()
    statement = insert(Candidate).on_conflict_do_nothing(index_elements=[Candidate.job_id, Candidate.n])
    values = [{"job_id": job.id, **row.model_dump(mode="json")} for row in rows]
    return set(session.scalars(statement.returning(Candidate.n), values))


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
