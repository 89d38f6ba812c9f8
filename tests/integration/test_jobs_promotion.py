"""Rows of datasets, resources and workers that an attempt or a worker process writes, on a real database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory
from service.db.models import (
    Checkpoint,
    Dataset,
    DatasetStatus,
    Desired,
    Job,
    JobEvent,
    JobKind,
    JobState,
    Supernet,
    Teacher,
    Worker,
)
from service.errors import DatasetInvalid
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.values import Claim, Finished, Lost
from service.settings import Settings
from service.store import open_store
from tests.jobs import TRAINER, insert_job, new_job
from tests.trainer import candidate
from tests.waiting import wait_until
from workers.context import WorkerContext
from workers.heartbeat import Presence
from workers.lease import LeaseKeeper
from workers.materialise import Prepared, materialise
from workers.promote import promote_checkpoint, promote_result
from workers.protocol import (
    ArtifactRef,
    Candidates,
    CheckpointMessage,
    FileRef,
    Metric,
    Progress,
    Resource,
    Result,
    Warn,
)
from workers.recording import Recorder, Report, record
from workers.rundirs import RunDirs

IMPORTED = {
    "classes": ["cat", "dog"],
    "counts": {"images": 2, "labelled": 2, "splits": {}, "classes": {"cat": 1, "dog": 1}},
    "image": {"channels": 3, "min_side": 8, "max_side": 9},
    "report": {"findings": []},
}
BLOB = b"rows"
BLOB_DIGEST = sha256(BLOB).hexdigest()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return session_factory(engine)


@pytest.fixture
def context(settings: Settings, sessions: sessionmaker[Session]) -> WorkerContext:
    return WorkerContext(settings, sessions, open_store(settings.store_location), "test", TRAINER)


@pytest.fixture
def claim(sessions: sessionmaker[Session]) -> Callable[..., Claim]:
    def make(**job: Any) -> Claim:
        with sessions.begin() as session:
            transitions.enqueue(session, new_job(**job))
            claimed = transitions.claim_next(session, ["cpu"], "test", 60)
        assert claimed is not None
        return claimed

    return make


@pytest.fixture
def dataset_id(sessions: sessionmaker[Session]) -> UUID:
    with sessions.begin() as session:
        row = Dataset(owner="ada", name="pets", version=1, source={})
        session.add(row)
    return row.id


def in_transaction(sessions: sessionmaker[Session], change: Callable[[Session], Any]) -> Any:
    with sessions.begin() as session:
        return change(session)


def event_types(sessions: sessionmaker[Session], claim: Claim) -> list[str]:
    with sessions() as session:
        query = select(JobEvent.type).where(JobEvent.job_id == claim.job_id, JobEvent.seq > 2).order_by(JobEvent.seq)
        return list(session.scalars(query))


# --- checkpoints ---


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
    for n in (1, 2, 3):
        with sessions.begin() as session:
            assert promote_checkpoint(session, mine, n, checkpoint(n)) is None
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


# --- reports ---


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


# --- datasets ---


def test_an_import_makes_its_dataset_ready_with_the_result(
    sessions: sessionmaker[Session], claim: Callable[..., Claim], dataset_id: UUID
) -> None:
    mine = claim(kind=JobKind.DATASET_IMPORT, dataset_id=dataset_id)
    blob = ArtifactRef(
        name="dataset.parquet",
        path="dataset.parquet",
        sha256=BLOB_DIGEST,
        size_bytes=len(BLOB),
        kind="dataset",
        media_type="application/vnd.apache.parquet",
    )
    result = Result(result={}, artifacts=[blob], dataset=IMPORTED)
    for _ in range(2):  # the second time after a lost answer
        finished = in_transaction(sessions, lambda s: promote_result(s, mine, result))
        assert isinstance(finished, Finished)
    row = in_transaction(sessions, lambda s: s.get_one(Dataset, dataset_id))
    assert (row.status, row.sha256, row.size_bytes) == (DatasetStatus.READY, BLOB_DIGEST, len(BLOB))
    assert (row.classes, row.counts, row.image, row.report) == tuple(IMPORTED.values())


@pytest.fixture
def ready(sessions: sessionmaker[Session], dataset_id: UUID) -> UUID:
    with sessions.begin() as session:
        row = session.get_one(Dataset, dataset_id)
        row.status, row.sha256 = DatasetStatus.READY, BLOB_DIGEST
        row.classes, row.counts, row.image = IMPORTED["classes"], IMPORTED["counts"], IMPORTED["image"]  # type: ignore[assignment]
    return dataset_id


@pytest.fixture
def prepare(context: WorkerContext, claim: Callable[..., Claim], tmp_path: Path) -> Callable[..., Prepared]:
    def make(**job: Any) -> Prepared:
        mine = claim(**job)
        with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
            prepared = materialise(context, mine, keeper, tmp_path)
        assert isinstance(prepared, Prepared)
        return prepared

    return make


def test_a_search_gets_the_facts_and_the_blob_of_its_dataset(
    context: WorkerContext, prepare: Callable[..., Prepared], ready: UUID, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(BLOB)
    context.store.put_file(tmp_path / "blob")
    start = prepare(dataset_id=ready).start
    assert (start.dataset["classes"], start.dataset["digest"]) == (["cat", "dog"], BLOB_DIGEST)
    [blob] = start.inputs
    assert (blob.name, blob.sha256) == ("dataset", BLOB_DIGEST)
    assert Path(blob.path).read_bytes() == BLOB
    context.store.delete(BLOB_DIGEST)
    assert prepare(dataset_id=ready).start.inputs == [blob]  # cached on this host


def test_a_lost_blob_is_a_clear_error(prepare: Callable[..., Prepared], ready: UUID) -> None:
    with pytest.raises(DatasetInvalid, match="import it again"):
        prepare(dataset_id=ready)


def test_a_built_in_dataset_needs_no_blob(prepare: Callable[..., Prepared]) -> None:
    start = prepare(spec={"dataset": {"id": "digits"}}).start
    assert (start.dataset["name"], start.inputs, start.resume) == ("digits", [], None)


# --- worker processes ---


def test_a_worker_reports_busy_slots_draining_and_its_end(sessions: sessionmaker[Session]) -> None:
    draining = threading.Event()
    presence = Presence(
        sessions, name="w", queues=["cpu"], slots=2, info={"pid": 1}, heartbeat_s=600.0, draining=draining
    )

    def row() -> Worker | None:
        with sessions() as session:
            return session.get(Worker, "w")

    def shows(busy: int, is_draining: bool) -> bool:
        found = row()
        return found is not None and (found.busy, found.draining) == (busy, is_draining)

    with presence:
        wait_until(lambda: shows(0, False), "the worker reports")
        with presence.busy():
            wait_until(lambda: shows(1, False), "the slot is taken")
            draining.set()
            presence.announce()
            wait_until(lambda: shows(1, True), "the worker drains")
        wait_until(lambda: shows(0, True), "the slot is free")
    assert row() is None


def test_sweep_keeps_the_folders_of_running_attempts_only(sessions: sessionmaker[Session], settings: Settings) -> None:
    with sessions.begin() as session:
        running = insert_job(session, JobState.RUNNING, Desired.RUN, fence=3)
        queued = insert_job(session, JobState.QUEUED, Desired.RUN, fence=3)
    dirs = RunDirs.of(settings)
    kept = dirs.make(running, 3)
    (kept.parent / "2").mkdir()
    orphan = dirs.make(queued, 3)
    (dirs.runs / "not-ours" / "x").mkdir(parents=True)
    with sessions() as session:
        assert dirs.sweep(session) == 2
    assert kept.is_dir()
    assert not (kept.parent / "2").exists()
    assert not orphan.parent.exists()
    assert (dirs.runs / "not-ours" / "x").is_dir()
