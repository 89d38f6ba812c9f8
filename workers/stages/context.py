"""What a stage works with: the spec, what earlier stages left, and the ways to report, to save and to be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from service.errors import CheckpointIncompatible
from workers.channel import Channel
from workers.protocol import (
    CHECKPOINT_FORMAT,
    CheckpointMessage,
    FileRef,
    Metric,
    Progress,
    Resource,
    Resume,
    Start,
    TrainerMessage,
    Warn,
)
from workers.training.compute import Compute, choose_compute
from workers.training.files import WrittenFile, describe_file

Json = dict[str, Any]

MIN_PROGRESS_INTERVAL_S = 0.25
"""People cannot follow more, and each message costs the supervisor something."""

_CHECKPOINT_SHARE = 0.1
"""Writing checkpoints may take this share of the time; big networks are saved less often than asked."""


class Estimator(Protocol):
    """Turns progress into time."""

    def seconds_left(self, stage: str, fraction: float) -> float | None:
        """Seconds left of the whole job when ``stage`` is this far; None when unknown."""
        ...


class BudgetReached(Exception):
    """The job's time is up: the stage ends with what it has, or the job has nothing to show. Raised once."""


class Context:
    """One attempt of a job, seen from its stages. Belongs to one thread.

    Attributes:
        start: the supervisor's order.
        run_dir: the only folder that is written to.
        compute: device and precision.
        outputs: JSON results of finished stages by name.
        timings: seconds spent in each stage, over all attempts.
        stage: name of the current one.
        state: where the current stage goes on from, empty at its beginning.
        estimator: of the time left, once the work is known.
        budget_reached: True once the job's time was up; nothing long may be begun any more.
    """

    def __init__(self, start: Start, channel: Channel, *, precision: str = "fp32") -> None:
        self.start = start
        self.run_dir = Path(start.run_dir)
        self.compute: Compute = choose_compute(start.device, precision)
        saved = _readable(start.resume) if start.resume else {}
        self.outputs: dict[str, Json] = dict(saved.get("outputs", {}))
        self.timings: dict[str, float] = dict(saved.get("timings", {}))
        self.state: Json = {}
        self.budget_reached = False
        self.estimator: Estimator | None = None
        self._channel = channel
        self._saved_stage, self._saved_state = saved.get("stage"), saved.get("state", {})
        self._files: dict[str, WrittenFile] = {}
        for name in start.resume.files if start.resume else ():
            self._files[name] = describe_file(self.run_dir / name)
        self._resources: list[Resource] = []
        self.stage = ""
        self._entered_at = self._progress_due_at = 0.0
        self._checkpoint_due_at = time.monotonic() + start.checkpoint_s

    # The course of a stage

    def enter(self, stage: str) -> None:
        """Begin a stage, or go on with it where a checkpoint left it."""
        self.stage = stage
        self.state = dict(self._saved_state) if stage == self._saved_stage else {}
        self._entered_at = time.monotonic()
        self._progress_due_at = 0.0
        self.progress(0.0)

    def complete(self, outputs: Json) -> None:
        """End the stage: its outputs, files and resources count from the checkpoint that this sends."""
        self.outputs[self.stage] = outputs
        self.checkpoint({})
        self._progress_due_at = 0.0
        self.progress(1.0)

    def safe_point(self, save: Callable[[], None]) -> None:
        """Say after each step that the stage could be left here: saves when the time has come, stops when asked.

        Args:
            save: writes the stage's files, if any, and calls :meth:`checkpoint`.

        Raises:
            StopRequested, BudgetReached: see :meth:`poll`; what there was to save was saved just before.
        """
        # Read once: a wish that comes in after the save must wait for the next safe point, which saves again.
        reason = self._channel.stop_reason
        if reason == "budget" and self.budget_reached:
            reason = None
        began = time.monotonic()
        if reason not in (None, "lease_lost") or began >= self._checkpoint_due_at:
            save()
            slow_s = (time.monotonic() - began) / _CHECKPOINT_SHARE
            self._checkpoint_due_at = max(self._checkpoint_due_at, began + slow_s)
        if reason is not None:
            self.poll()

    def poll(self) -> None:
        """Return while the job may go on; for work that has nothing to save.

        Raises:
            StopRequested: when somebody wants the attempt to stop.
            BudgetReached: once, when the job's time is up.
        """
        if self._channel.stop_reason != "budget":
            self._channel.raise_if_stopped()
        elif not self.budget_reached:
            self.budget_reached = True
            raise BudgetReached

    def poll_to_finish(self) -> None:
        """Like :meth:`poll` for the job's last steps, which a spent budget does not keep from showing what there is.

        Raises:
            StopRequested: when somebody wants the attempt to stop.
        """
        with suppress(BudgetReached):
            self.poll()

    # Files and checkpoints

    def path(self, name: str) -> Path:
        """Where the file ``name`` lies or is to be written."""
        return self.run_dir / name

    def input(self, name: str) -> Path | None:
        """A file that the supervisor has put on local disk for this job; None when there is none of this name."""
        return next((Path(blob.path) for blob in self.start.inputs if blob.name == name), None)

    def keep(self, written: WrittenFile, name: str | None = None) -> None:
        """Let a file be part of all checkpoints from the next one on."""
        self._files[name or written.path.name] = written

    def drop(self, name: str) -> None:
        """Let a file be part of no further checkpoint; nothing happens when it is in none."""
        self._files.pop(name, None)

    @property
    def channel(self) -> Channel:
        """For questions to the supervisor."""
        return self._channel

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every file that is being kept, by name."""
        return {name: written.sha256 for name, written in sorted(self._files.items())}

    def file(self, name: str) -> WrittenFile | None:
        """A file that is being kept, or that the checkpoint brought."""
        return self._files.get(name)

    def announce(self, resource: Resource) -> None:
        """Register a teacher or supernet with the next checkpoint; its file must be kept."""
        self._resources.append(resource)

    def checkpoint(self, state: Json, *, binding: bool = False) -> None:
        """Send everything that the job would go on from.

        Args:
            state: of this stage.
            binding: what is sent from now on may become known to no one unless this checkpoint is kept.
        """
        now = time.monotonic()
        spent = self.timings.get(self.stage, 0.0) + now - self._entered_at
        self.timings[self.stage], self._entered_at = spent, now
        message = CheckpointMessage(
            stage=self.stage,
            state={
                "format": CHECKPOINT_FORMAT,
                "stage": self.stage,
                "outputs": self.outputs,
                "state": state,
                "timings": self.timings,
            },
            files=[self.reference(name, written) for name, written in sorted(self._files.items())],
            resources=self._resources,
            binding=binding,
        )
        self.send(message)
        self._resources = []
        self._checkpoint_due_at = now + self.start.checkpoint_s

    def reference(self, name: str, written: WrittenFile) -> FileRef:
        """How a message names a file of the run directory."""
        path = written.path.relative_to(self.run_dir).as_posix()
        return FileRef(name=name, path=path, sha256=written.sha256, size_bytes=written.size_bytes)

    # Reports

    def send(self, message: TrainerMessage) -> None:
        """Send any other message."""
        self._channel.send(message)

    def progress(self, fraction: float, **detail: Any) -> None:
        """Report how far the stage is, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._progress_due_at:
            return
        self._progress_due_at = now + MIN_PROGRESS_INTERVAL_S
        eta_s = self.estimator.seconds_left(self.stage, fraction) if self.estimator else None
        self.send(Progress(stage=self.stage, fraction=fraction, eta_seconds=eta_s, detail=detail))

    def metric(self, step: int, values: dict[str, float]) -> None:
        """Report numbers at a step of the stage."""
        self.send(Metric(stage=self.stage, step=step, values=values))

    def warn(self, code: str, detail: str) -> None:
        """Tell the user something that does not stop the job."""
        self.send(Warn(code=code, detail=detail))


def _readable(resume: Resume) -> Json:
    """The state to go on from.

    Raises:
        CheckpointIncompatible: another version has written it.
    """
    found = resume.state.get("format", 1)  # the first ones did not say so
    if found == CHECKPOINT_FORMAT:
        return resume.state
    raise CheckpointIncompatible.of(resume.stage, found=f"format {found}", allowed=f"format {CHECKPOINT_FORMAT}")
