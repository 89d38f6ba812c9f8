"""Keeps a training alive: back to a sound point with a lower rate when numbers break, smaller parts when memory does.

Roll-backs are part of a run's definition. The points that they go back to are at fixed steps, and everything that they
change is in each checkpoint, so a run that is killed anywhere rolls back the same way when it is resumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from service.errors import LossDiverged
from service.jobs.spec import RecoverySpec
from workers.stages.context import Context, Json
from workers.training.engine import TrainingLoop

_POINTS = 20
"""Sound points of a training. Each costs a file as large as a checkpoint's, and each roll-back at most so much work."""

_LEAST_STEPS = 10
"""Between two points: short trainings begin anew sooner than a file is written."""


class Recovery:
    """The roll-backs of one training.

    Args:
        ctx: of the stage.
        spec: how often, and how much lower the rate becomes.
    """

    def __init__(self, ctx: Context, spec: RecoverySpec) -> None:
        self._ctx = ctx
        self._spec = spec
        self._rollbacks = 0
        self._every = 1
        self._point: str | None = None

    def begin(self, loop: TrainingLoop[Any], saved: Json | None) -> None:
        """Prepare a loop that is fresh, or was restored from a checkpoint with this state (None: it had none)."""
        self._every = max(_LEAST_STEPS, loop.total_steps // _POINTS)
        loop.micro = replace(loop.micro, may_shrink=self._spec.out_of_memory == "split")
        if saved is not None:
            self._rollbacks = saved["rollbacks"]
            self._point = saved["point"]
            loop.rate_scale = saved["rate_scale"]
            loop.micro = replace(loop.micro, size=saved["micro_batch"])
        if self._point is None:
            self._keep(loop)

    def state(self, loop: TrainingLoop[Any]) -> Json:
        """What the stage's checkpoint has to hold."""
        return {
            "rollbacks": self._rollbacks,
            "point": self._point,
            "rate_scale": loop.rate_scale,
            "micro_batch": loop.micro.size,
        }

    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """Make a sound point where one is due.

        Raises:
            LossDiverged: it would not be sound.
        """
        if loop.step % self._every == 0 and loop.step < loop.total_steps:
            self._keep(loop)

    def roll_back(self, loop: TrainingLoop[Any], error: LossDiverged) -> None:
        """Put the loop back to the last sound point, with a lower rate from there on.

        Raises:
            LossDiverged: that was done as often as allowed.
        """
        if self._rollbacks >= self._spec.rollbacks or self._point is None:
            raise _final(error, self._rollbacks, loop.rate_scale) from error
        self._rollbacks += 1
        loop.restore(self._ctx.path(self._point))
        loop.rate_scale *= self._spec.rate_factor
        self._ctx.warn(
            "rolled_back",
            f"{error.detail.split(';')[0]} in stage {self._ctx.stage}; training went back to step {loop.step} and goes "
            f"on with {loop.rate_scale:g} times the learning rate (roll-back {self._rollbacks} of "
            f"{self._spec.rollbacks}).",
        )

    def end(self) -> None:
        """The training is over."""
        if self._point is not None:
            self._ctx.drop(self._point)

    def _keep(self, loop: TrainingLoop[Any]) -> None:
        if not self._spec.rollbacks:
            return
        # Two names in turn: a checkpoint that names the point before is promoted while this one is written.
        name = f"rollback-{loop.step // self._every % 2}.safetensors"
        written = loop.save(self._ctx.path(name))
        self.end()
        self._ctx.keep(written)
        self._point = name


def _final(error: LossDiverged, rollbacks: int, rate_scale: float) -> LossDiverged:
    if not rollbacks:
        return error
    tried = f" {rollbacks} roll-backs, to {rate_scale:g} times the learning rate, did not help."
    return LossDiverged(error.detail + tried, extra={**error.extra, "rollbacks": rollbacks, "rate_scale": rate_scale})
