"""Teachers on their way out of an import and into a search."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Job, JobKind, Teacher
from service.errors import TeacherUnavailable
from service.ids import IdKind, format_id
from service.jobs.retries import retries
from service.jobs.values import Claim, Finished
from tests.integration.jobs.rows import in_transaction
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import Prepared, materialise
from workers.promote import promote_result
from workers.protocol import ArtifactRef, Resource, Result
from workers.supervisor import Failed

WEIGHTS = b"weights"
DIGEST = sha256(WEIGHTS).hexdigest()


def register(sessions: sessionmaker[Session], claim: Callable[..., Claim]) -> Teacher:
    mine = claim(kind=JobKind.TEACHER_IMPORT)
    artifact = ArtifactRef(
        name="teacher.safetensors",
        path="teacher.safetensors",
        sha256=DIGEST,
        size_bytes=len(WEIGHTS),
        kind="teacher",
        media_type="application/octet-stream",
    )
    info = {"architecture": {"embed_dim": 8}, "kind": "vit"}
    resource = Resource(kind="teacher", name="toy", file=artifact.name, info=info)
    result = Result(result={"digest": DIGEST}, artifacts=[artifact], teacher=resource)
    for _ in range(2):  # the second time after a lost answer
        finished = in_transaction(sessions, lambda s: promote_result(s, mine, result))
        assert isinstance(finished, Finished)
    row: Teacher = in_transaction(sessions, lambda s: s.scalars(select(Teacher)).one())
    job = in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id))
    assert job.result == {"digest": DIGEST, "teacher": format_id(IdKind.TEACHER, row.id)}
    return row


def test_an_import_leaves_one_teacher_and_names_it_in_its_result(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    row = register(sessions, claim)
    assert (row.name, row.sha256, row.architecture, row.info) == ("toy", DIGEST, {"embed_dim": 8}, {"kind": "vit"})


@pytest.fixture
def prepare(context: WorkerContext, claim: Callable[..., Claim], tmp_path: Path) -> Callable[..., Prepared]:
    def make(**job: Any) -> Prepared:
        mine = claim(**job)
        with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
            prepared = materialise(context, mine, keeper, tmp_path)
        assert isinstance(prepared, Prepared)
        return prepared

    return make


def test_a_search_gets_the_facts_and_the_weights_of_its_teacher(
    context: WorkerContext,
    sessions: sessionmaker[Session],
    claim: Callable[..., Claim],
    prepare: Callable[..., Prepared],
    tmp_path: Path,
) -> None:
    reference = format_id(IdKind.TEACHER, register(sessions, claim).id)
    spec = {"dataset": {"id": "digits"}, "teacher": {"id": reference}}
    with pytest.raises(TeacherUnavailable, match="register it again"):
        prepare(spec=spec)
    (tmp_path / "blob").write_bytes(WEIGHTS)
    context.store.put_file(tmp_path / "blob")
    start = prepare(spec=spec).start
    assert (start.teacher["id"], start.teacher["digest"], start.teacher["info"]) == (reference, DIGEST, {"kind": "vit"})
    [blob] = start.inputs
    assert (blob.name, Path(blob.path).read_bytes()) == ("teacher", WEIGHTS)


def test_weights_that_cannot_be_had_are_not_asked_for_again_and_again() -> None:
    ending = Failed.by(TeacherUnavailable("The hub does not answer."))
    assert (ending.error["retryable"], retries({}, ending.code)) == (True, False)
