"""Attempts whose store is full, away or damaged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.db.models import Artifact, Attempt, Checkpoint, JobState
from service.errors import StorageFull, Unavailable
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.states import AttemptOutcome
from service.jobs.values import Finished
from service.store import ArtifactStore, Stored
from tests.integration.jobs.bench import Bench
from workers.context import WorkerContext


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

    def digests(self, min_age_s: float = 0.0) -> Iterator[str]:
        return self._store.digests(min_age_s)

    def claim(self, owner: str) -> str:
        return self._store.claim(owner)


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


def test_nothing_is_recorded_ahead_of_a_binding_checkpoint(faulty: Callable[..., Bench], store: Faulty) -> None:
    run = faulty(checkpoint_every=4, binding=True)
    store.refusals = 2
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert [row.state for row in run.rows(Checkpoint)] == [{"step": 4}, {"step": 8}]
    evaluated = 0
    at_checkpoints = []
    for event in run.events(EventType.CANDIDATE, EventType.CHECKPOINT):
        if event.type == EventType.CHECKPOINT:
            at_checkpoints.append(evaluated)
        else:
            evaluated = event.payload["evaluated"]
    assert at_checkpoints == [4, 8]


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
