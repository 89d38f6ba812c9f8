"""The trainer process alone at the end of its pipes: it obeys, it keeps the protocol clean, and it never outstays."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import TRAINER
from tests.waiting import is_alive, wait_until
from workers.child import Child, TrainerCommand, trainer_environment
from workers.protocol import (
    CheckpointMessage,
    ErrorMessage,
    ExitCode,
    Lease,
    Progress,
    Result,
    Start,
    Stop,
    TrainerMessage,
    decode_from_trainer,
    encode,
)

pytestmark = pytest.mark.faults

HOLD = {"hold_at": 3, "gate": "/nonexistent"}


class Trainer:
    def __init__(self, run_dir: Path, lease_s: float, spec: dict[str, Any], log: Path) -> None:
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                TRAINER.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        self.started_at = time.monotonic()
        self.send(
            Start(
                job_id="job",
                fence=1,
                kind="search",
                spec=spec,
                seed=0,
                run_dir=str(run_dir),
                cache_dir=str(run_dir),
                threads=1,
                device="cpu",
                checkpoint_s=0,
                lease_s=lease_s,
                dataset={},
            )
        )

    def send(self, message: Start | Lease | Stop) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(message))
        self.process.stdin.flush()

    def read_until(self, kind: type[TrainerMessage]) -> list[TrainerMessage]:
        assert self.process.stdout is not None
        messages: list[TrainerMessage] = []
        while not messages or not isinstance(messages[-1], kind):
            messages.append(decode_from_trainer(self.process.stdout.readline()))
        return messages

    def hold(self) -> None:
        """Wait until it has made its last step before it holds."""
        while True:
            message = self.read_until(Progress)[-1]
            if isinstance(message, Progress) and message.fraction > 0.15:
                return

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(timeout=30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    trainers: list[Trainer] = []

    def begin(lease_s: float = 60.0, log: Path = tmp_path / "log", **spec: Any) -> Trainer:
        trainers.append(Trainer(tmp_path, lease_s, spec, log))
        return trainers[-1]

    yield begin
    for trainer in trainers:
        trainer.process.kill()
        with trainer.process, contextlib.suppress(BrokenPipeError):
            trainer.hang_up()


def test_it_reports_and_sends_its_result(start: Callable[..., Trainer]) -> None:
    trainer = start()
    messages = trainer.read_until(Result)
    assert sum(isinstance(message, CheckpointMessage) for message in messages) == 2
    assert trainer.wait() == ExitCode.DONE


def test_it_checkpoints_and_leaves_when_told_to_stop(start: Callable[..., Trainer]) -> None:
    trainer = start(**HOLD)
    trainer.hold()
    trainer.send(Stop(reason="pause"))
    [*_, checkpoint] = trainer.read_until(CheckpointMessage)
    assert isinstance(checkpoint, CheckpointMessage)
    assert checkpoint.state == {"step": 3}
    assert trainer.wait() == ExitCode.STOPPED


def test_it_dies_with_its_supervisor(start: Callable[..., Trainer]) -> None:
    trainer = start(**HOLD)
    trainer.hold()
    trainer.hang_up()
    assert trainer.wait() == -9


def test_its_own_children_die_with_it(start: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer = start(fault="start_child", fault_at=0, trace=str(tmp_path / "pid"), **HOLD)
    trainer.hold()
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    trainer.hang_up()
    wait_until(lambda: not is_alive(pid), "the loader process is gone")


def test_without_renewals_it_stops_in_order(start: Callable[..., Trainer]) -> None:
    trainer = start(lease_s=2.0, **HOLD)
    trainer.hold()
    trainer.read_until(CheckpointMessage)
    assert trainer.wait() == ExitCode.STOPPED
    assert time.monotonic() - trainer.started_at >= 1.5


def test_with_renewals_it_goes_on(start: Callable[..., Trainer]) -> None:
    trainer = start(lease_s=1.0, **HOLD)
    trainer.hold()
    while time.monotonic() - trainer.started_at < 3.0:
        trainer.send(Lease(ttl_s=30.0))
        time.sleep(0.05)
    assert trainer.process.poll() is None


def test_work_that_does_not_listen_is_ended_with_the_lease(start: Callable[..., Trainer]) -> None:
    assert start(lease_s=1.0, fault="ignore_stop", fault_at=1).wait() == -9


def test_work_that_keeps_the_interpreter_to_itself_is_ended_with_the_lease(start: Callable[..., Trainer]) -> None:
    """No Python thread runs any more, so the dead-man cannot either."""
    assert start(lease_s=1.0, fault="hog_interpreter", fault_at=1).wait() == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("diverge", "loss_diverged"),
        ("bug", "internal"),
        ("full_disk", "storage_full"),
        ("no_memory", "out_of_memory"),
    ],
)
def test_errors_are_typed_and_tell_no_secrets(start: Callable[..., Trainer], fault: str, code: str) -> None:
    trainer = start(fault=fault)
    [*_, message] = trainer.read_until(ErrorMessage)
    assert isinstance(message, ErrorMessage)
    assert message.error["code"] == code
    assert "secret" not in json.dumps(message.error)
    assert trainer.wait() == ExitCode.ERROR


def test_an_error_is_told_even_when_the_log_has_no_room(start: Callable[..., Trainer]) -> None:
    trainer = start(fault="full_disk", log=Path("/dev/full"))
    [*_, message] = trainer.read_until(ErrorMessage)
    assert isinstance(message, ErrorMessage)
    assert message.error["code"] == "storage_full"
    assert trainer.wait() == ExitCode.ERROR


def test_a_trainer_that_does_not_read_can_still_be_stopped(tmp_path: Path) -> None:
    """Its pipe is full, so no line reaches it and whoever writes would wait."""
    sleeper = TrainerCommand(("sleep", "600"))
    child = Child(sleeper, threads=1, log_path=tmp_path / "log")
    for _ in range(10_000):
        child.send(Lease(ttl_s=1.0))
    child.stop("cancel", grace_s=0.1)
    assert child.wait() == -15
    child.close()


def test_a_trainer_gets_no_settings_no_credentials_and_fixed_thread_counts() -> None:
    secrets = dict.fromkeys(
        ("VITAILOR_DATABASE_URL", "vitailor_broker_url", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD"), "x"
    )
    environment = trainer_environment({"PATH": "/bin", "OMP_NUM_THREADS": "64", **secrets}, 3)
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert not secrets.keys() & environment.keys()
