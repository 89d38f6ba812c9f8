"""The disk is full: the job fails with ``storage_full``, nothing half-written is listed, and a retry goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import Engine, select

from service.db.models import Artifact, Checkpoint, JobState
from service.jobs import transitions
from service.jobs.states import AttemptOutcome
from service.settings import Settings
from service.store import open_store
from tests.faults.small_disk import SmallDisk, small_disk
from tests.faults.stack import Stack
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.waiting import wait_until
from workers.child import Child, TrainerCommand
from workers.protocol import CheckpointMessage, ErrorMessage, ExitCode, Result, Start, TrainerMessage

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


def artifacts(stack: Stack) -> list[str]:
    with stack.sessions() as session:
        return list(session.scalars(select(Artifact.name)))


def saved_step(stack: Stack, job_id: UUID) -> int | None:
    steps = [checkpoint.state["step"] for checkpoint in stack.checkpoints(job_id)]
    return max(steps, default=None)


def listed_digests(stack: Stack) -> set[str]:
    with stack.sessions() as session:
        digests = set(session.scalars(select(Artifact.sha256)))
        for files in session.scalars(select(Checkpoint.files)):
            digests |= set(files.values())
    return digests


@pytest.mark.parametrize(("hold_at", "resumes_at"), [(6, 4), (9, 8)], ids=["checkpoint", "result"])
def test_a_full_disk_stops_the_job_which_goes_on_once_there_is_room(
    stack: Stack, disk: SmallDisk, tmp_path: Path, hold_at: int, resumes_at: int
) -> None:
    """Checkpoints are written at steps 4 and 8, and what the job leaves after the last one, step 9."""
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    stack.start_relay()
    stack.start_worker()
    job_id = stack.enqueue(trace=str(trace), gate=str(gate), hold_at=hold_at)
    wait_until(lambda: saved_step(stack, job_id) == resumes_at, f"step {resumes_at} is saved", limit_s=40)
    disk.fill()
    gate.touch()
    job = stack.wait_for_state(job_id, JobState.FAILED)
    assert job.error is not None
    assert (job.error["code"], job.error["retryable"]) == ("storage_full", True)
    store = open_store(stack.settings.store_location)
    assert all(store.exists(digest) for digest in listed_digests(stack))
    assert not artifacts(stack)
    disk.free()
    stack.act(transitions.retry, job_id)
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    assert [attempt.outcome for attempt in stack.attempts(job_id)] == [AttemptOutcome.FAILED, AttemptOutcome.SUCCEEDED]
    assert [int(line.split()[1]) for line in trace.read_text().splitlines() if line.startswith("2 ")] == [
        *range(resumes_at, 10)
    ]
    assert artifacts(stack) == ["weights.bin"]
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


@pytest.mark.parametrize("when", ["data", "teacher", "supernet", "search", "retrain", "export", "proof"])
def test_a_disk_that_fills_up_in_a_stage_is_what_the_stage_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    stage = "export" if when == "proof" else when
    with small_disk(tmp_path / "small", size_kb=65_536) as disk:
        monkeypatch.setenv("FILL_DISK", str(disk.path))
        monkeypatch.setenv("FILL_WHEN", when)
        command = TrainerCommand((sys.executable, "-m", "tests.faults.filling_trainer"))
        with contextlib.closing(Child(command, 1, tmp_path / "log")) as child:
            start = search_start(TINY, disk.path, checkpoint_s=0)
            child.send(start)
            stages, errors = [], []
            while not child.drained:
                match child.receive(60):
                    case CheckpointMessage() as message:
                        stages.append(message.stage)
                        for ref in message.files:  # whole, whatever comes after
                            content = (Path(start.run_dir) / ref.path).read_bytes()
                            assert sha256(content).hexdigest() == ref.sha256
                    case ErrorMessage() as message:
                        errors.append(message.error["code"])
                    case Result():
                        raise AssertionError("a result without room")
            assert child.wait() == ExitCode.ERROR
    assert errors == ["storage_full"]
    order = ["data", "teacher", "supernet", "search", "retrain", "export"]
    assert list(dict.fromkeys(stages)) in (order[: order.index(stage)], order[: order.index(stage) + 1])


def told(command: TrainerCommand, start: Start, log: Path) -> tuple[list[TrainerMessage], int]:
    """Everything that a trainer says to this order, and its exit code."""
    messages = []
    with contextlib.closing(Child(command, 1, log)) as child:
        child.send(start)
        while not child.drained:
            message = child.receive(60)
            if message is not None:
                messages.append(message)
        return messages, child.wait()


def weights(messages: list[TrainerMessage]) -> dict[tuple[str, int | None], str]:
    [result] = [message for message in messages if isinstance(message, Result)]
    return {(a.name, a.candidate_n): a.sha256 for a in result.artifacts if a.name.endswith(".safetensors")}


@pytest.mark.timeout(900)
def test_an_export_that_found_no_room_goes_on_to_what_its_twin_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once as the stage begins, once as the export is proved; after that there is room."""
    twin, code = told(TrainerCommand(), search_start(TINY, tmp_path / "twin", checkpoint_s=0), tmp_path / "log")
    assert (code, len(weights(twin)) > 0) == (ExitCode.DONE, True)
    filling = TrainerCommand((sys.executable, "-m", "tests.faults.filling_trainer"))
    with small_disk(tmp_path / "small", size_kb=65_536) as disk:
        monkeypatch.setenv("FILL_DISK", str(disk.path))
        start = search_start(TINY, disk.path, checkpoint_s=0)
        for when in ("export", "proof"):
            monkeypatch.setenv("FILL_WHEN", when)
            messages, code = told(filling, start, tmp_path / "log")
            errors = [message.error["code"] for message in messages if isinstance(message, ErrorMessage)]
            assert (code, errors) == (ExitCode.ERROR, ["storage_full"])
            checkpoints = [message for message in messages if isinstance(message, CheckpointMessage)]
            disk.free()
            if checkpoints:
                start = resumed(start, checkpoints[-1], disk.path)
        end, code = told(TrainerCommand(), start, tmp_path / "log")
    assert code == ExitCode.DONE
    assert weights(end) == weights(twin)
