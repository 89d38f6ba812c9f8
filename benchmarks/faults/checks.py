"""What must be true of a service when all jobs are over, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import (
    TERMINAL_STATES,
    Artifact,
    Attempt,
    Candidate,
    Checkpoint,
    Dataset,
    Job,
    JobEvent,
    JobState,
    Supernet,
    Teacher,
)
from service.jobs.events import EventType
from service.jobs.states import AttemptOutcome

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What may not depend on what happened on the way."""

    result: Json | None
    candidates: tuple[tuple[int, tuple[float, ...], float | None], ...]
    files: frozenset[tuple[str, int | None, str]]


def outcome_of(session: Session, job_id: UUID) -> Outcome:
    """The outcome of a job that succeeded."""
    rows = session.scalars(select(Candidate).where(Candidate.job_id == job_id).order_by(Candidate.n))
    files = session.scalars(select(Artifact).where(Artifact.job_id == job_id))
    job = session.get_one(Job, job_id)
    return Outcome(
        result=_comparable(job.result),
        candidates=tuple((row.n, tuple(row.genotype), row.score) for row in rows),
        # Descriptions name their job, which is another one.
        files=frozenset(
            (file.name, file.candidate_n, file.sha256) for file in files if file.name.endswith((".bin", ".safetensors"))
        ),
    )


_OWN = frozenset({"id", "job", "supernet", "teacher", "timings", "seconds", "device_seconds"})


def _comparable(value: Any) -> Any:
    """Without what names the job itself or measures time."""
    if isinstance(value, dict):
        return {key: _comparable(part) for key, part in value.items() if key not in _OWN and not key.endswith("_s")}
    return [_comparable(part) for part in value] if isinstance(value, list) else value


def job_problems(session: Session, job_id: UUID) -> Iterator[str]:
    """What is wrong with the rows of one job."""
    job = session.get_one(Job, job_id)
    attempts = session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence)).all()
    events = session.scalars(select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)).all()
    if job.state not in TERMINAL_STATES:
        yield f"is {job.state}"
        return
    if [event.seq for event in events] != list(range(1, job.last_seq + 1)):
        yield "has a gap in its events"
    if events[-1].type != EventType.END:
        yield f"ends with the event {events[-1].type}"
    if sum(event.type == EventType.END for event in _since_last_start(events)) != 1:
        yield "ended more than once"
    if any(attempt.outcome is None or attempt.ended_at is None for attempt in attempts):
        yield "has an attempt that never ended"
    if sum(attempt.outcome == AttemptOutcome.SUCCEEDED for attempt in attempts) != (job.state == JobState.SUCCEEDED):
        yield "has not one success for its success"
    if len(attempts) != job.attempts:
        yield f"counts {job.attempts} attempts of {len(attempts)}"
    for before, after in pairwise(attempts):
        if before.ended_at is not None and after.started_at < before.ended_at:
            yield f"attempt {after.fence} was claimed before {before.fence} had ended"


def _since_last_start(events: Iterable[JobEvent]) -> list[JobEvent]:
    """Events after the last time that the job was queued."""
    found: list[JobEvent] = []
    for event in events:
        found.append(event)
        if event.type == EventType.JOB_STATUS and event.payload["status"] == "queued":
            found.clear()
    return found


def overlap_problems(trace: Path) -> Iterator[str]:
    """Attempts that wrote after a later one had begun to, in the order of the file."""
    latest = 0
    if not trace.exists():
        return
    for line in trace.read_text().splitlines():
        fence, step, at_s = line.split()
        if int(fence) < latest:
            yield f"attempt {fence} wrote step {step} at {at_s}, after attempt {latest} had begun"
        latest = max(latest, int(fence))


def referenced_blobs(session: Session) -> set[str]:
    """Digests that some row names."""
    found: set[str] = set()
    for column in (Artifact.sha256, Teacher.sha256, Supernet.sha256, Dataset.sha256):
        found |= {digest for digest in session.scalars(select(column)) if digest is not None}
    for files in session.scalars(select(Checkpoint.files)):
        found |= set(files.values())
    for info in session.scalars(select(Supernet.info)):
        found |= set(info.get("files", {}).values())
    return found


def stored_blobs(store: Path) -> set[str]:
    """Digests of the blobs of a local store."""
    return {path.parent.name + path.name for path in (store / "blobs" / "sha256").glob("*/*")}


def leftover_files(data_dir: Path) -> Iterator[str]:
    """Files that were meant to last for a moment only."""
    for folder in ("runs", "store/partial"):
        yield from (str(path.relative_to(data_dir)) for path in (data_dir / folder).glob("*"))
    for path in (data_dir / "cache").rglob("*"):
        if path.name.startswith((".", "tmp")) or "partial" in path.name:
            yield str(path.relative_to(data_dir))
