"""The disk is full: the job fails with ``storage_full``, nothing half-written is listed, and a retry goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from service.db.models import Artifact, Checkpoint, JobState
from service.jobs import transitions
from service.jobs.states import AttemptOutcome
from service.settings import Settings
from service.store import open_store
from tests.faults.small_disk import SmallDisk, small_disk
from tests.faults.stack import Stack
from tests.stage_runs import TINY, merged, search_start
from workers.child import Child, TrainerCommand
from workers.protocol import CheckpointMessage, ErrorMessage, ExitCode, Result

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", size_kb=4096) as disk:
        yield disk


@pytest.fixture(params=["of the trainer", "of the store", "of the logs"])
def stack(request: pytest.FixtureRequest, settings: Settings, engine: Engine, disk: SmallDisk) -> Iterator[Stack]:
    """What lies on the small disk: everything of the worker, only the store, or all but the store."""
    changes = {
        "of the trainer": {"data_dir": disk.path, "store_url": (settings.data_dir / "store").as_uri()},
        "of the store": {"store_url": (disk.path / "store").as_uri()},
        "of the logs": {"data_dir": disk.path},
    }[request.param]
    stack = Stack(settings.model_copy(update={"lease_s": 5.0, **changes}), engine)
    with contextlib.closing(stack):
        yield stack


def listed_digests(stack: Stack) -> set[str]:
    with stack.sessions() as session:
        digests = set(session.scalars(select(Artifact.sha256)))
        for files in session.scalars(select(Checkpoint.files)):
            digests |= set(files.values())
    return digests


def test_a_full_disk_stops_the_job_which_goes_on_once_there_is_room(
    stack: Stack, disk: SmallDisk, tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    stack.start_relay()
    stack.start_worker()
    job_id = stack.enqueue(trace=str(trace), gate=str(gate), hold_at=6)
    stack.wait_for_checkpoint(job_id)
    disk.fill()
    gate.touch()
    job = stack.wait_for_state(job_id, JobState.FAILED)
    assert job.error is not None
    assert (job.error["code"], job.error["retryable"]) == ("storage_full", True)
    store = open_store(stack.settings.store_location)
    assert all(store.exists(digest) for digest in listed_digests(stack))
    disk.free()
    stack.act(transitions.retry, job_id)
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.FAILED, AttemptOutcome.SUCCEEDED]
    assert [int(line.split()[1]) for line in trace.read_text().splitlines() if line.startswith("2 ")] == [*range(4, 10)]
    for digest in listed_digests(stack):
        store.fetch(digest, tmp_path / "fetched")  # checks it
    left = [path for path in stack.settings.data_dir.rglob("*") if "partial" in path.name and path.is_file()]
    assert left == []
    assert list((stack.settings.data_dir / "runs").iterdir()) == []


@pytest.mark.parametrize("room_kb", [40, 200, 480, 560, 620])
def test_the_stages_say_so_wherever_the_disk_fills_up(tmp_path: Path, room_kb: int) -> None:
    """While the dataset is decoded, while training is saved, while the winner is retrained, while it is exported."""
    body = merged(TINY, {"supernet": {"epochs": 2}})
    with small_disk(tmp_path / "small", size_kb=room_kb) as disk:
        child = Child(TrainerCommand(), 1, disk.path / "logs" / "log")
        with contextlib.closing(child):
            child.send(search_start(body, disk.path, checkpoint_s=0))
            stages = []
            while not child.drained:
                message = child.receive(60)
                if isinstance(message, CheckpointMessage):
                    stages.append(message.stage)
                assert not isinstance(message, Result), f"{room_kb} KB are enough"
                if isinstance(message, ErrorMessage):
                    assert message.error["code"] == "storage_full", (stages[-1:], message.error)
            assert child.wait() == ExitCode.ERROR
