"""Runs a training loop as part of a stage: reports, saves in time, stops when asked, goes on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from service.errors import LossDiverged
from service.jobs.spec import OptimSpec, RecoverySpec
from workers.stages.context import Context, Json
from workers.stages.recovery import Recovery
from workers.training.engine import TrainingLoop

Batch = TypeVar("Batch")

TRAINING_FILE = "training.safetensors"
"""Weights and optimizer of the loop that is under way."""

_METRIC_POINTS = 200
"""A curve of a stage needs no more, and each point makes the processor wait for the device."""


_ROSE = 10.0
"""Losses grow a few times when a later phase of a training adds summands; beyond that, something went wrong."""


@dataclass(frozen=True, slots=True)
class Optim:
    """Epochs, batch, rate and warm-up of a filled spec, for the images that there are."""

    epochs: int
    batch_size: int
    lr: float
    warmup_fraction: float

    @classmethod
    def of(cls, ctx: Context, spec: OptimSpec, images: int) -> Optim:
        """Read a spec; a batch larger than the dataset is reduced, since it would make no step at all."""
        assert spec.epochs is not None, "filled by service.jobs.resolve"
        assert spec.batch_size is not None, "filled by service.jobs.resolve"
        assert spec.lr is not None, "filled by service.jobs.resolve"
        assert spec.warmup_fraction is not None, "filled by service.jobs.resolve"
        if spec.batch_size > images:
            ctx.warn("batch_reduced", f"batch_size {spec.batch_size} exceeds the {images} images and was reduced to it")
        return cls(spec.epochs, min(spec.batch_size, images), spec.lr, spec.warmup_fraction)


def metrics_every(total_steps: int) -> int:
    """Steps between two points of a curve."""
    return max(1, total_steps // _METRIC_POINTS)


def train(
    ctx: Context,
    loop: TrainingLoop[Batch],
    *,
    batch_size: int,
    state: Json | None = None,
    part: int = 0,
    parts: int = 1,
) -> dict[str, float]:
    """Train to the end, from where the stage's checkpoint left off.

    Args:
        ctx: of the stage.
        loop: a fresh loop.
        batch_size: images of a step, for the rate in reports.
        state: what the stage wants to find in its checkpoints beside the loop's own.
        part: how many of the stage's trainings are done.
        parts: how many it has.

    Returns:
        The last metrics.

    Raises:
        StopRequested, BudgetReached: after a checkpoint.
        LossDiverged: see :class:`TrainingLoop`; after as many roll-backs as the spec allows.
        OutOfMemory: see :class:`TrainingLoop`.
    """
    observer = _Observer(ctx, batch_size, state or {}, part, parts)
    observer.begin(loop)
    while True:
        try:
            loop.run(observer)
            break
        except LossDiverged as error:
            observer.roll_back(loop, error)
    observer.end()
    return dict(observer.values)


class _Observer:
    def __init__(self, ctx: Context, batch_size: int, state: Json, part: int, parts: int) -> None:
        self.values: Mapping[str, float] = {}
        self._ctx = ctx
        self._batch_size = batch_size
        self._state = state
        self._part, self._parts = part, parts
        self._first_step, self._steps_before, self._began_at = 0, 0, 0.0
        self._micro_batch = 0
        self._first_loss: float | None = None
        self._recovery = Recovery(ctx, RecoverySpec.model_validate(ctx.start.spec.get("recovery") or {}))

    def begin(self, loop: TrainingLoop[Any]) -> None:
        """Let the loop go on where the stage's checkpoint left it, and start the clock of the rate."""
        saved = self._ctx.state.get("loop")
        if saved is not None:
            loop.restore(self._ctx.path(TRAINING_FILE))
            self.values = saved["metrics"]
            self._first_loss = saved.get("first_loss")
        self._recovery.begin(loop, (saved or {}).get("recovery"))
        self._micro_batch = loop.micro.size
        self._first_step, self._steps_before = loop.step, self._part * loop.total_steps
        self._began_at = time.monotonic()

    def end(self) -> None:
        """The training is over: what it would have gone on from is needed no more."""
        last = self.values.get("loss")
        if last is not None and self._first_loss is not None and last > _ROSE * self._first_loss:
            self._ctx.warn(
                "loss_rose",
                f"The loss of stage {self._ctx.stage} was {self._first_loss:.3g} at first and {last:.3g} at the end: "
                "its weights are of little use. Lower the learning rate.",
            )
        self._ctx.drop(TRAINING_FILE)
        self._recovery.end()
        self._ctx.state = {}

    def roll_back(self, loop: TrainingLoop[Any], error: LossDiverged) -> None:
        """See :meth:`Recovery.roll_back`."""
        self._recovery.roll_back(loop, error)
        self._first_step, self._began_at = loop.step, time.monotonic()

    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """Report, save when due, and stop when asked."""
        if loop.micro.size != self._micro_batch:
            self._micro_batch = loop.micro.size
            self._tell_split(loop)
        self._recovery.after_step(loop)
        seconds = time.monotonic() - self._began_at
        rate = (loop.step - self._first_step) * self._batch_size / max(seconds, 1e-9)
        fraction = (self._part + loop.step / loop.total_steps) / self._parts
        self._ctx.progress(fraction, step=loop.step, steps=loop.total_steps, images_per_s=round(rate, 1))
        self._ctx.safe_point(lambda: self._save(loop))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Pass the numbers on; the steps of a stage's trainings are counted through."""
        self.values = values
        if self._first_loss is None:
            self._first_loss = values.get("loss")
        self._ctx.metric(self._steps_before + step, dict(values))

    def _tell_split(self, loop: TrainingLoop[Any]) -> None:
        self._ctx.warn(
            "batch_split",
            f"A step of {loop.micro.images} images does not fit into memory in stage {self._ctx.stage}; it is computed "
            f"{loop.micro.size} at a time, which takes longer and changes results by rounding only.",
        )

    def _save(self, loop: TrainingLoop[Any]) -> None:
        self._ctx.keep(loop.save(self._ctx.path(TRAINING_FILE)))
        progress = {
            "step": loop.step,
            "metrics": dict(self.values),
            "first_loss": self._first_loss,
            "recovery": self._recovery.state(loop),
        }
        self._ctx.checkpoint({**self._state, "loop": progress})
