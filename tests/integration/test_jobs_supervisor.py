"""One attempt from claim to end, in this process, with a real database, a real store and real trainer processes."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory, sync_engine
from service.db.models import Artifact, Attempt, Candidate, Checkpoint, Job, JobEvent, JobState, Teacher
from service.embedded.servers import Servers
from service.errors import StorageFull, Unavailable
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.states import AttemptOutcome
from service.jobs.values import Finished, Lost
from service.settings import Settings
from service.store import ArtifactStore, Stored, open_store
from tests.jobs import TRAINER, counting_job
from tests.servers import fresh_database
from tests.waiting import is_alive, wait_until
from workers.context import WorkerContext
from workers.rundirs import RunDirs
from workers.supervisor import supervise


@pytest.fixture(scope="module")
def shared_engine(servers: Servers) -> Iterator[Engine]:
    with fresh_database(servers) as url:
        engine = sync_engine(url, "test")
        yield engine
        engine.dispose()


@pytest.fixture
def sessions(shared_engine: Engine) -> sessionmaker[Session]:
    with shared_engine.begin() as connection:
        connection.execute(text("TRUNCATE job, dataset CASCADE"))
    return session_factory(shared_engine)


@pytest.fixture
def context(tmp_path: Path, sessions: sessionmaker[Session]) -> WorkerContext:
    settings = Settings(
        _env_file=None,
        data_dir=tmp_path,
        lease_s=6.0,
        heartbeat_s=0.3,
        desired_poll_s=0.05,
        stop_grace_s=0.4,
        retry_backoff_s=0.01,
    )
    return WorkerContext(settings, sessions, open_store(settings.store_location), "test", TRAINER)


class Bench:
    """Runs attempts of one job."""

    def __init__(self, context: WorkerContext, job: Job) -> None:
        self.context = context
        self.job_id = job.id

    def attempt(self) -> Finished | Lost:
        with self.context.sessions.begin() as session:
            session.execute(text("UPDATE job SET not_before = NULL"))
            claim = transitions.claim_next(session, ["cpu"], "test", self.context.settings.lease_s)
        assert claim is not None
        return supervise(self.context, claim)

    def act(self, action: Callable[..., Any]) -> None:
        with self.context.sessions.begin() as session:
            action(session, self.job_id)

    @property
    def job(self) -> Job:
        with self.context.sessions() as session:
            return session.get_one(Job, self.job_id)

    def rows(self, table: Any) -> list[Any]:
        with self.context.sessions() as session:
            key = table.__table__.primary_key.columns
            return list(session.scalars(select(table).where(table.job_id == self.job_id).order_by(*key)))

    def events(self, *types: EventType) -> list[JobEvent]:
        return [event for event in self.rows(JobEvent) if event.type in types]

    def reached(self, step: int) -> bool:
        return (self.job.progress.get("fraction") or 0) * 10 >= step - 0.5


@pytest.fixture
def bench(context: WorkerContext) -> Callable[..., Bench]:
    def make(**spec: Any) -> Bench:
        with context.sessions.begin() as session:
            return Bench(context, transitions.enqueue(session, counting_job(**spec)))

    return make


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def test_normal_run_records_everything(bench: Callable[..., Bench]) -> None:
    run = bench(steps=10)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    job = run.job
    assert (job.result, job.stage, job.error, job.failures) == ({"steps": 10}, "count", None, 0)
    assert job.device_seconds > 0
    [attempt] = run.rows(Attempt)
    assert attempt.info["versions"] == {"counting": "1"}
    [artifact] = run.rows(Artifact)
    assert (artifact.name, artifact.candidate_n, artifact.fence, artifact.owner) == ("weights.bin", 0, 1, "ada")
    assert b"".join(run.context.store.open_range(artifact.sha256)) == b'{"steps": 10}'
    candidates = run.rows(Candidate)
    assert [row.n for row in candidates] == list(range(10))
    assert [row.n for row in candidates if row.on_front] == [9]
    assert (candidates[0].rank, candidates[0].accuracy) == (0, {"val": 0.5})
    [teacher] = run.rows(Teacher)
    assert teacher.architecture == {"depth": 8}
    assert [(row.n, row.state) for row in run.rows(Checkpoint)] == [(1, {"step": 4}), (2, {"step": 8})]


def test_events_tell_the_story_in_order(bench: Callable[..., Bench]) -> None:
    run = bench(steps=10)
    run.attempt()
    events = run.rows(JobEvent)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == EventType.END
    statuses = [event.payload["status"] for event in events if event.type == EventType.JOB_STATUS]
    assert statuses == ["queued", "running", "succeeded"]
    assert [event.payload["step"] for event in events if event.type == EventType.METRIC] == list(range(10))
    told = [c["n"] for event in events if event.type == EventType.CANDIDATE for c in event.payload["candidates"]]
    assert told == list(range(10))


def test_nothing_is_left_on_disk_but_the_log(bench: Callable[..., Bench]) -> None:
    run = bench()
    run.attempt()
    dirs = RunDirs.of(run.context.settings)
    assert list(dirs.runs.iterdir()) == []
    assert "chatter of a library" in dirs.log_path(run.job_id, 1).read_text()


def test_a_crash_is_retried_from_the_last_checkpoint(bench: Callable[..., Bench], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    run = bench(fault="crash", fault_at=6, fault_attempts=1, trace=str(trace))
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert trace.read_text().split("\n") == [*(f"1 {n}" for n in range(6)), *(f"2 {n}" for n in range(4, 10)), ""]
    first, second = run.rows(Attempt)
    assert (first.error["code"], first.exit_code, first.error["last_known"]["stage"]) == ("worker_lost", 9, "count")
    assert second.info["resumed_from"] == 1
    told = [c["n"] for event in run.events(EventType.CANDIDATE) for c in event.payload["candidates"]]
    assert told == list(range(10))  # those that were sent again are not told again


def test_a_crash_loop_ends_after_max_failures(bench: Callable[..., Bench]) -> None:
    run = bench(fault="crash", fault_at=2)
    outcomes = [run.attempt() for _ in range(3)]
    assert [o.state for o in outcomes if isinstance(o, Finished)] == [
        JobState.QUEUED,
        JobState.QUEUED,
        JobState.FAILED,
    ]
    error = run.job.error
    assert error is not None
    assert (error["code"], error["retryable"], error["exit_code"]) == ("worker_lost", True, 9)


def test_progress_between_crashes_forgives_them(bench: Callable[..., Bench]) -> None:
    """Only failures without a checkpoint in between count, so a long job survives many rare ones."""
    run = bench(fault="crash", fault_at=6, checkpoint_every=1, steps=10)
    run.attempt()
    assert run.job.failures == 1
    with run.context.sessions.begin() as session:
        session.execute(text("UPDATE job SET failures = 2, spec = spec || '{\"fault_at\": 8}'"))
    run.attempt()
    assert (run.job.state, run.job.failures) == (JobState.QUEUED, 1)


@pytest.mark.parametrize(
    ("fault", "code"), [("diverge", "loss_diverged"), ("bug", "internal"), ("full_disk", "storage_full")]
)
def test_a_typed_error_ends_the_job_at_once(bench: Callable[..., Bench], fault: str, code: str) -> None:
    run = bench(fault=fault)
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    error = run.job.error
    assert error is not None
    assert error["code"] == code
    assert "secret" not in str(error)
    assert run.rows(Attempt)[0].exit_code == 1


def test_a_trainer_that_breaks_the_protocol_is_ended(bench: Callable[..., Bench]) -> None:
    run = bench(fault="garbage", fault_attempts=1)
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)


def test_a_process_that_escaped_with_the_pipe_does_not_hold_the_job(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    run = bench(fault="leak_pipe", fault_at=0, trace=str(tmp_path / "pid"))
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_processes_that_a_trainer_leaves_behind_are_killed(bench: Callable[..., Bench], tmp_path: Path) -> None:
    run = bench(fault="leave_child", fault_at=0, trace=str(tmp_path / "pid"))
    run.attempt()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the loader process is gone")


@pytest.mark.parametrize(
    ("action", "outcome", "state"),
    [
        (transitions.request_cancel, AttemptOutcome.CANCELLED, JobState.CANCELLED),
        (transitions.request_pause, AttemptOutcome.PAUSED, JobState.PAUSED),
    ],
)
def test_cancel_and_pause_of_a_running_job(
    bench: Callable[..., Bench],
    background: Callable[..., Future[Any]],
    action: Callable[..., Any],
    outcome: AttemptOutcome,
    state: JobState,
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.act(action)
    assert attempt.result(timeout=10) == Finished(outcome, state)
    assert run.rows(Checkpoint)[-1].state == {"step": 6}  # the one that was written because of the stop
    assert run.job.failures == 0


def test_cancel_between_claim_and_start_starts_nothing(bench: Callable[..., Bench]) -> None:
    run = bench()
    with run.context.sessions.begin() as session:
        claim = transitions.claim_next(session, ["cpu"], "test", 60)
    assert claim is not None
    run.act(transitions.request_cancel)
    assert supervise(run.context, claim) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)
    assert not RunDirs.of(run.context.settings).log_path(run.job_id, 1).exists()


def test_a_paused_job_goes_on_where_it_was(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    run = bench(hold_at=6, gate=str(gate), trace=str(trace))
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.act(transitions.request_pause)
    attempt.result(timeout=10)
    gate.touch()
    run.act(transitions.resume)
    run.attempt()
    assert trace.read_text().split("\n") == [*(f"1 {n}" for n in range(6)), *(f"2 {n}" for n in range(6, 10)), ""]


def test_draining_hands_the_job_back_without_a_failure(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.context.draining.set()
    assert attempt.result(timeout=10) == Finished(AttemptOutcome.PREEMPTED, JobState.QUEUED)
    assert (run.job.failures, run.job.published_at) == (0, None)


def test_a_trainer_that_ignores_the_stop_is_killed(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(fault="ignore_stop", fault_at=3)
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(2), "step 2")
    run.act(transitions.request_cancel)
    assert attempt.result(timeout=10) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)
    assert run.rows(Attempt)[0].exit_code == -15


def test_a_spent_budget_ends_a_job_that_has_nothing_to_show(bench: Callable[..., Bench]) -> None:
    run = bench(hold_at=6, gate="/nonexistent", budget={"max_wall_seconds": 1})
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    error = run.job.error
    assert error is not None
    assert error["code"] == "budget_exhausted"


def test_a_spent_budget_lets_a_job_finish_with_the_best_so_far(bench: Callable[..., Bench]) -> None:
    run = bench(hold_at=6, gate="/nonexistent", budget={"max_wall_seconds": 1}, finish_on_budget=True)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert run.job.stop_reason == "budget"


def test_cancel_does_not_wait_for_a_job_that_finishes_up(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(fault="ignore_stop", fault_at=3, budget={"max_wall_seconds": 1})
    attempt = background(run.attempt)
    with run.context.sessions() as session:
        spent = select(Job.deadline_at < func.clock_timestamp())
        wait_until(lambda: session.scalar(spent), "the budget is spent")
    run.act(transitions.request_cancel)
    assert attempt.result(timeout=20) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)


def test_a_lost_fence_kills_the_trainer_and_writes_nothing(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    with run.context.sessions.begin() as session:
        session.execute(text("UPDATE job SET lease_until = now() - interval '1 second'"))
        [reaped] = transitions.reap_expired(session, backoff_s=60)
    assert attempt.result(timeout=10) == Lost()
    job = run.job
    assert (job.state, job.fence) == (JobState.QUEUED, reaped.fence + 1)
    assert [row.outcome for row in run.rows(Attempt)] == [AttemptOutcome.LOST]
    assert max(row.state["step"] for row in run.rows(Checkpoint)) == 4


# --- the store ---


class Faulty(ArtifactStore):
    """A real store that refuses when told to."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.calls = 0
        self.refusals = 0  # of the next calls
        self.full_after: float = math.inf  # calls

    def put_file(self, path: Path) -> Stored:
        self.calls += 1
        if self.calls <= self.refusals:
            raise Unavailable("the store does not answer")
        if self.calls > self.full_after:
            raise StorageFull("no room left")
        return self._store.put_file(path)

    def open_range(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        return self._store.open_range(*args, **kwargs)

    def exists(self, sha256: str) -> bool:
        return self._store.exists(sha256)

    def delete(self, sha256: str) -> None:
        self._store.delete(sha256)


@pytest.fixture
def store(context: WorkerContext) -> Faulty:
    return Faulty(context.store)


@pytest.fixture
def faulty(bench: Callable[..., Bench], context: WorkerContext, store: Faulty) -> Callable[..., Bench]:
    def make(**spec: Any) -> Bench:
        run = bench(**spec)
        run.context = replace(context, store=store)
        return run

    return make


def test_a_full_store_ends_the_job_resumably(faulty: Callable[..., Bench], store: Faulty) -> None:
    run = faulty()
    store.full_after = 0
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    assert run.job.error is not None
    assert run.job.error["code"] == "storage_full"
    store.full_after = math.inf
    run.act(transitions.retry)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)


def test_a_full_store_at_the_end_keeps_the_checkpoint(faulty: Callable[..., Bench], store: Faulty) -> None:
    run = faulty(checkpoint_every=4)
    store.full_after = 2
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    assert [row.state for row in run.rows(Checkpoint)] == [{"step": 4}, {"step": 8}]
    assert run.rows(Artifact) == []


def test_a_store_that_comes_back_in_time_costs_nothing(faulty: Callable[..., Bench], store: Faulty) -> None:
    run = faulty(checkpoint_every=100)
    store.refusals = 3
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert store.calls == 4


def test_a_checkpoint_that_cannot_be_stored_now_does_not_stop_the_job(
    faulty: Callable[..., Bench], store: Faulty
) -> None:
    run = faulty(checkpoint_every=4)
    store.refusals = 1
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert [row.state for row in run.rows(Checkpoint)] == [{"step": 8}]


def test_of_replaced_checkpoints_the_last_is_promoted(bench: Callable[..., Bench]) -> None:
    run = bench(replace_files=True, steps=40, checkpoint_every=1)
    run.attempt()
    newest = run.rows(Checkpoint)[-1]
    assert newest.state == {"step": 40}
    assert b"".join(run.context.store.open_range(newest.files["count.bin"])) == b"40"


@pytest.mark.parametrize("damage", ["corrupt", "missing"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    bench: Callable[..., Bench], tmp_path: Path, damage: str
) -> None:
    trace = tmp_path / "trace"
    run = bench(fault="crash", fault_at=9, fault_attempts=1, trace=str(trace))
    run.attempt()
    spoil(run, run.rows(Checkpoint)[-1], damage)
    run.attempt()
    assert run.job.state == JobState.SUCCEEDED
    assert trace.read_text().split("\n")[9:] == [*(f"2 {n}" for n in range(4, 10)), ""]
    [warning] = run.events(EventType.WARNING)
    assert warning.payload["code"] == "checkpoint_unusable"
    assert run.job.warnings == [warning.payload]
    newest = run.rows(Checkpoint)[-1]
    assert b"".join(run.context.store.open_range(newest.files["count.bin"])) == b"8"


def test_without_any_sound_checkpoint_it_starts_over(bench: Callable[..., Bench]) -> None:
    run = bench(fault="crash", fault_at=9, fault_attempts=1)
    run.attempt()
    for checkpoint in run.rows(Checkpoint):
        spoil(run, checkpoint, "missing")
    run.attempt()
    assert run.job.state == JobState.SUCCEEDED
    assert run.rows(Attempt)[1].info["resumed_from"] is None


def spoil(run: Bench, checkpoint: Checkpoint, damage: str) -> None:
    sha256 = checkpoint.files["count.bin"]
    if damage == "missing":
        run.context.store.delete(sha256)
        return
    [blob] = [path for path in run.context.settings.data_dir.rglob(sha256[2:]) if path.is_file()]
    blob.write_bytes(b"?")
