"""How fast a worker is: what it has measured of itself, and what that makes of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.forecast.quantity import Work

CALIBRATION_KEY = "calibration"
"""Under which a worker's ``info`` holds it."""


class Calibration(BaseModel):
    """Speeds of one trainer on a worker that does nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = Field(1, ge=1, le=1)
    device: str
    threads: int = Field(ge=1)
    macs_per_s: float = Field(gt=0, description="Multiply-accumulates of training in large blocks.")
    pass_s: float = Field(ge=0, description="What a pass through a block costs beside them.")
    update_s: float = Field(ge=0, description="What an optimizer step costs for each parameter.")
    start_s: float = Field(ge=0, description="From the start of a process to its first computation.")
    base_mb: float = Field(ge=0, description="Memory of a process that has loaded the libraries.")
    error: float = Field(ge=0, description="Relative error of these figures on a network that did not give them.")

    @classmethod
    def of_worker(cls, info: Mapping[str, Any]) -> Self | None:
        """What a worker's row tells; None of one that has not measured itself, or has done so in another version."""
        try:
            return cls.model_validate(info[CALIBRATION_KEY])
        except (KeyError, ValidationError):
            return None

    def seconds(self, work: Work) -> float:
        """How long the work takes."""
        return (
            work.macs / self.macs_per_s
            + work.passes * self.pass_s
            + work.updates * self.update_s
            + work.processes * self.start_s
        )


def fit_speeds(small: tuple[Work, float], large: tuple[Work, float]) -> tuple[float, float]:
    """Speed and overhead from two measured steps: ``seconds = macs / macs_per_s + passes * pass_s``.

    Args:
        small: work and seconds of a step whose time is mostly overhead.
        large: the same of one whose time is mostly arithmetic.

    Returns:
        ``macs_per_s`` and ``pass_s``; where noise would make one of them negative, the overhead is 0.
    """
    (few, few_s), (many, many_s) = small, large
    overhead_s = (few_s * many.macs - many_s * few.macs) / (few.passes * many.macs - many.passes * few.macs)
    overhead_s = min(max(0.0, overhead_s), 0.9 * many_s / many.passes)
    return many.macs / (many_s - many.passes * overhead_s), overhead_s
