"""Reports of a trainer as rows and events, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import (
    Job,
    JobEvent,
)
from service.jobs.events import EventType
from service.jobs.values import Claim
from tests.integration.jobs.rows import event_types, in_transaction
from tests.trainer import candidate
from workers.protocol import (
    Candidates,
    Metric,
    Progress,
    Warn,
)
from workers.recording import Recorder, Report, record


def test_reports_become_rows_and_events(sessions: sessionmaker[Session], claim: Callable[..., Claim]) -> None:
    mine = claim()
    reports: list[Report] = [
        Progress(stage="search", fraction=0.5, eta_seconds=3.0),
        Candidates(rows=[candidate(0), candidate(1), candidate(2)], front=[1]),
        Warn(code="few_images", detail="Only 40 images."),
        Warn(code="few_images", detail="Only 40 images."),
    ]
    in_transaction(sessions, lambda s: record(s, mine, reports))
    job = in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id))
    assert (job.stage, job.progress["fraction"], job.progress["eta_seconds"]) == ("search", 0.5, 3.0)
    assert job.warnings == [{"code": "few_images", "detail": "Only 40 images."}]
    # Candidates 0 and 1 are of generation 0, candidate 2 of the next.
    assert event_types(sessions, mine) == [
        EventType.STAGE_PROGRESS,
        EventType.CANDIDATE,
        EventType.CANDIDATE,
        EventType.PARETO,
        EventType.WARNING,
    ]


def test_candidates_that_are_sent_again_are_not_told_again(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    batch = Candidates(rows=[candidate(0), candidate(1)], front=[1])
    for _ in range(2):
        in_transaction(sessions, lambda s: record(s, mine, [batch]))
    assert event_types(sessions, mine) == [EventType.CANDIDATE, EventType.PARETO]


def test_the_recorder_writes_at_once_and_then_in_batches(claim: Callable[..., Claim]) -> None:
    written: list[int] = []
    recorder = Recorder(claim(), lambda change: written.append(1))
    for step in range(100):
        recorder.add(Metric(stage="teacher", step=step, values={}))
        recorder.flush_if_due()
    assert len(written) == 1
    assert 0 < recorder.wait_s <= 1
    recorder.flush()
    assert len(written) == 2


def test_of_progress_in_a_batch_only_the_latest_is_kept(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    recorder = Recorder(mine, lambda change: in_transaction(sessions, change))
    for fraction in (0.1, 0.2, 0.3):
        recorder.add(Progress(stage="teacher", fraction=fraction))
    recorder.add(Progress(stage="supernet", fraction=0.0))
    recorder.flush()
    with sessions() as session:
        payloads = session.scalars(select(JobEvent.payload).where(JobEvent.type == EventType.STAGE_PROGRESS)).all()
    assert [(p["stage"], p["fraction"]) for p in payloads] == [("teacher", 0.3), ("supernet", 0.0)]
