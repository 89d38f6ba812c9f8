"""Blobs that nobody needs any more leave the store, and no blob that somebody needs does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.orm import Session, sessionmaker

from service.db.blobs import forbid_holding, unneeded
from service.db.models import Artifact, Checkpoint, Dataset, Desired, JobState, Supernet, Teacher
from service.errors import Unavailable
from service.jobs.states import AttemptOutcome
from service.jobs.values import Finished
from service.store import ArtifactStore
from tests.integration.jobs.bench import Bench
from tests.integration.jobs.test_supervisor_store import Faulty
from tests.jobs import insert_job
from workers.context import WorkerContext
from workers.promote import hold
from workers.protocol import FileRef
from workers.retention import remove_unneeded, sweep_blobs

Sessions = sessionmaker[Session]


def put(store: ArtifactStore, folder: Path, text: str) -> str:
    (folder / "file").write_text(text)
    return store.put_file(folder / "file").sha256


def test_many_checkpoints_leave_the_files_of_the_last_two(bench: Callable[..., Bench]) -> None:
    run = bench(steps=40, checkpoint_every=1)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    kept = {digest for row in run.rows(Checkpoint) for digest in row.files.values()}
    results = {row.sha256 for row in run.rows(Artifact)}
    teachers = {row.sha256 for row in run.rows(Teacher)}
    assert len(run.rows(Checkpoint)) == 2
    assert set(run.context.store.digests()) == kept | results | teachers


@pytest.mark.parametrize("named_by", ["checkpoint", "artifact", "dataset", "teacher", "supernet", "file of a supernet"])
def test_a_blob_that_a_row_names_is_kept(context: WorkerContext, tmp_path: Path, named_by: str) -> None:
    needed, other = put(context.store, tmp_path, "needed"), put(context.store, tmp_path, "other")
    with context.sessions.begin() as session:
        job = insert_job(session, JobState.PAUSED, Desired.PAUSE)
        of_job = {"owner": "ada", "job_id": job}
        row: Any = {
            "checkpoint": lambda: Checkpoint(job_id=job, n=1, fence=1, stage="x", state={}, files={"a": needed}),
            "artifact": lambda: Artifact(
                **of_job, fence=1, name="a", kind="weights", media_type="x/y", sha256=needed, size_bytes=1
            ),
            "dataset": lambda: Dataset(owner="ada", name=str(uuid4()), version=1, source={}, sha256=needed),
            "teacher": lambda: Teacher(**of_job, name="t", architecture={}, info={}, sha256=needed),
            "supernet": lambda: Supernet(**of_job, method="masktas", space={}, info={}, sha256=needed),
            "file of a supernet": lambda: Supernet(
                **of_job, method="masktas", space={}, info={"files": {"decoder": needed}}, sha256="0" * 64
            ),
        }[named_by]()
        session.add(row)
    with context.sessions() as session:
        assert unneeded(session, [needed, other]) == {other}
        assert unneeded(session, []) == set()
    assert sweep_blobs(context.sessions, context.store, min_age_s=0) == 1
    assert set(context.store.digests()) == {needed}


def test_blobs_of_another_database_are_left_alone(context: WorkerContext, tmp_path: Path) -> None:
    context.store.claim("another database")
    theirs = put(context.store, tmp_path, "named by rows that are not here")
    assert sweep_blobs(context.sessions, context.store, min_age_s=0) == 0
    assert remove_unneeded(context.sessions, context.store, [theirs]) == 0
    assert list(context.store.digests()) == [theirs]


def test_what_was_stored_a_moment_ago_is_not_swept(context: WorkerContext, tmp_path: Path) -> None:
    put(context.store, tmp_path, "its row is about to be written")
    assert sweep_blobs(context.sessions, context.store) == 0


def test_nothing_is_removed_between_the_look_at_a_blob_and_the_row_that_names_it(
    context: WorkerContext, tmp_path: Path, background: Callable[..., Future[Any]]
) -> None:
    digest = put(context.store, tmp_path, "shared by twins")
    ref = FileRef(name="a", path="a", sha256=digest, size_bytes=1)
    with context.sessions.begin() as session:
        hold(session, context.store, [ref])
        removal = background(lambda: remove_unneeded(context.sessions, context.store, [digest]))
        job = insert_job(session, JobState.PAUSED, Desired.PAUSE)
        session.add(Checkpoint(job_id=job, n=1, fence=1, stage="x", state={}, files={"a": digest}))
        session.flush()
        assert not removal.done()
    assert removal.result(30) == 0
    assert context.store.exists(digest)


class Removing(Faulty):
    """A store from which somebody removes what was just found there, once."""

    def __init__(self, store: ArtifactStore, sessions: Sessions, content: str) -> None:
        super().__init__(store)
        self._sessions = sessions
        self._digest: str | None = sha256(content.encode()).hexdigest()
        self.removed = threading.Event()

    def put_file(self, path: Path) -> Any:
        stored = super().put_file(path)
        if stored.sha256 == self._digest:
            self._digest = None
            assert remove_unneeded(self._sessions, self._store, [stored.sha256]) == 1
            self.removed.set()
        return stored


@pytest.mark.parametrize("content", ["4", '{"steps": 10}'], ids=["checkpoint", "result"])
def test_a_file_that_was_removed_before_its_row_was_written_is_stored_again(
    bench: Callable[..., Bench], context: WorkerContext, content: str
) -> None:
    run = bench(steps=10)
    store = Removing(context.store, context.sessions, content)
    run.context = replace(context, store=store)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert store.removed.is_set()
    [artifact] = run.rows(Artifact)
    assert context.store.exists(artifact.sha256)
    assert all(context.store.exists(digest) for row in run.rows(Checkpoint) for digest in row.files.values())


def test_a_store_that_cannot_delete_now_costs_the_job_nothing(
    bench: Callable[..., Bench], context: WorkerContext
) -> None:
    class Stubborn(Faulty):
        def delete(self, sha256: str) -> None:
            raise Unavailable("the store does not answer")

    run = bench(steps=20, checkpoint_every=2)
    run.context = replace(context, store=Stubborn(context.store))
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert len(set(context.store.digests())) > 3
    assert sweep_blobs(context.sessions, context.store, min_age_s=0) > 0


def test_removals_take_turns(context: WorkerContext, background: Callable[..., Future[Any]], tmp_path: Path) -> None:
    digest = put(context.store, tmp_path, "garbage")
    with context.sessions.begin() as session:
        forbid_holding(session)
        removal = background(lambda: remove_unneeded(context.sessions, context.store, [digest]))
        assert context.store.exists(digest)
    assert removal.result(30) == 1
