"""Checkpoints that count, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import (
    Checkpoint,
    Job,
    Supernet,
    Teacher,
)
from service.jobs.events import EventType
from service.jobs.values import Claim, Lost
from tests.integration.jobs.rows import event_types, in_transaction
from workers.promote import promote_checkpoint, promote_result
from workers.protocol import (
    CheckpointMessage,
    FileRef,
    Resource,
    Result,
    Warn,
)
from workers.recording import record


def checkpoint(step: int) -> CheckpointMessage:
    ref = FileRef(name="net.bin", path="net.bin", sha256=sha256(b"%d" % step).hexdigest(), size_bytes=1)
    resources = [
        Resource(kind="teacher", name="mae", file="net.bin", info={"architecture": {"depth": 4}, "epochs": step}),
        Resource(kind="supernet", name="net", file="net.bin", info={"method": "masktas", "space": {"n": 1}}),
    ]
    return CheckpointMessage(stage="supernet", state={"step": step}, files=[ref], resources=resources)


def test_checkpoints_keep_the_last_two_and_resources_the_last(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    replaced = []
    for n in (1, 2, 3):
        with sessions.begin() as session:
            replaced.append(promote_checkpoint(session, mine, n, checkpoint(n)))
    assert replaced == [frozenset(), frozenset(), frozenset([sha256(b"1").hexdigest()])]
    with sessions() as session:
        assert [(row.n, row.state["step"]) for row in session.scalars(select(Checkpoint).order_by(Checkpoint.n))] == [
            (2, 2),
            (3, 3),
        ]
        [teacher], [supernet] = session.scalars(select(Teacher)).all(), session.scalars(select(Supernet)).all()
    newest = sha256(b"3").hexdigest()
    assert (teacher.sha256, teacher.architecture, teacher.info) == (newest, {"depth": 4}, {"epochs": 3})
    assert (supernet.sha256, supernet.method, supernet.space) == (newest, "masktas", {"n": 1})


def test_repeating_a_promotion_whose_answer_was_lost_changes_nothing(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()
    for _ in range(2):
        in_transaction(sessions, lambda s: promote_checkpoint(s, mine, 1, checkpoint(1)))
    assert event_types(sessions, mine) == [EventType.CHECKPOINT]


def test_a_checkpoint_forgives_earlier_failures(sessions: sessionmaker[Session], claim: Callable[..., Claim]) -> None:
    mine = claim()
    in_transaction(sessions, lambda s: s.execute(text("UPDATE job SET failures = 2")))
    in_transaction(sessions, lambda s: promote_checkpoint(s, mine, 1, checkpoint(1)))
    assert in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id).failures) == 0


def test_an_old_owner_promotes_nothing(sessions: sessionmaker[Session], claim: Callable[..., Claim]) -> None:
    mine = claim()
    in_transaction(sessions, lambda s: s.execute(text("UPDATE job SET fence = fence + 1")))
    result = Result(result={}, artifacts=[])
    assert in_transaction(sessions, lambda s: promote_checkpoint(s, mine, 1, checkpoint(1))) == Lost()
    assert in_transaction(sessions, lambda s: promote_result(s, mine, result)) == Lost()
    assert in_transaction(sessions, lambda s: record(s, mine, [Warn(code="w", detail="d")])) == Lost()
    assert event_types(sessions, mine) == []
