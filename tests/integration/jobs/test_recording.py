"""Reports of a trainer as rows and events, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from service.db.copy import copy_rows
from service.db.models import (
    Candidate,
    FrontMember,
    Job,
    JobEvent,
)
from service.jobs.events import EventType
from service.jobs.values import Claim
from tests.integration.jobs.rows import event_types, in_transaction
from tests.trainer import candidate
from workers.protocol import (
    MOST_ROWS,
    CandidateRow,
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
        Candidates(rows=[candidate(0), candidate(1), candidate(2)], joined=[1]),
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
    batch = Candidates(rows=[candidate(0), candidate(1)], joined=[1])
    for _ in range(2):
        in_transaction(sessions, lambda s: record(s, mine, [batch]))
    assert event_types(sessions, mine) == [EventType.CANDIDATE, EventType.PARETO]


def test_rows_come_back_as_they_were_sent(sessions: sessionmaker[Session], claim: Callable[..., Claim]) -> None:
    mine = claim()
    row = CandidateRow(
        n=0,
        generation=0,
        genotype=[2.0, 3.5, 0.1],
        parents=[],
        score=None,
        scores={"feature": 1e-300, "text": 'a "tab"\t\\ and \u00e9'},
        costs={"params_m": 0.1 + 0.2},
        feasible=False,
        architecture={"mlp_ratio": [2.0, 3.5]},
    )
    in_transaction(sessions, lambda s: record(s, mine, [Candidates(rows=[row])]))
    [stored] = in_transaction(sessions, lambda s: s.scalars(select(Candidate)).all())
    assert {name: getattr(stored, name) for name in CandidateRow.model_fields} == row.model_dump()


def test_an_event_does_not_grow_with_the_number_of_candidates(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    rows = [candidate(n).model_copy(update={"generation": 0, "feasible": n != 9}) for n in range(MOST_ROWS)]
    rows[0] = rows[0].model_copy(update={"score": None})
    in_transaction(sessions, lambda s: record(s, mine, [Candidates(rows=rows, joined=list(range(MOST_ROWS)))]))
    with sessions() as session:
        told, moved = session.scalars(
            select(JobEvent.payload).where(JobEvent.type.in_(["candidate", "pareto"])).order_by(JobEvent.seq)
        ).all()
    assert [best["n"] for best in told.pop("best")] == [199, 198, 197, 196, 195]
    assert told == {"generation": 0, "count": 200, "scored": 199, "feasible": 199, "evaluated": 200}
    assert (moved["size"], moved["joined"], moved["left"], len(moved["newest"])) == (200, 200, 0, 20)


def front_of(sessions: sessionmaker[Session]) -> list[int]:
    with sessions() as session:
        return list(session.scalars(select(FrontMember.n).order_by(FrontMember.n)))


def test_the_front_moves_and_an_attempt_may_begin_it_anew(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    fronts = []
    for batch in (
        Candidates(rows=[candidate(n) for n in range(5)], joined=[0, 1, 2]),
        Candidates(joined=[3], left=[0, 2, 4]),
        Candidates(joined=[3], left=[0]),  # sent again
        Candidates(joined=[1, 4], anew=True),
        Candidates(anew=True),
    ):
        in_transaction(sessions, lambda s, batch=batch: record(s, mine, [batch]))
        fronts.append(front_of(sessions))
    assert fronts == [[0, 1, 2], [1, 3], [1, 3], [1, 4], []]
    assert event_types(sessions, mine).count(EventType.PARETO) == 4


def test_errors_of_copy_are_those_of_other_statements(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    row = (mine.job_id, 7)
    with pytest.raises(IntegrityError, match="fk_front_member"):
        in_transaction(sessions, lambda s: copy_rows(s, "front_member", ("job_id", "n"), [row]))
    with sessions() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        in_transaction(sessions, lambda s: s.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid}))
        with pytest.raises(OperationalError):
            copy_rows(session, "front_member", ("job_id", "n"), [row])


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
