"""A limit on latency that is measured on the worker, network by network, while the search runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from models.architecture import Architecture
from search.constraints import Constraint
from search.metrics import Metric


class LatencyMeter(Protocol):
    """Measures networks on the machine that runs the job."""

    def measure(self, arch: Architecture) -> float:
        """Milliseconds of the network as it would be delivered, with its head. Asked once for each network."""
        ...


@dataclass(frozen=True, slots=True)
class LatencyLimit:
    """What a measured latency must lie within.

    Attributes:
        meter: measures it.
        low: least milliseconds, above 0; None for no such limit.
        high: most milliseconds, above 0; None for no such limit.
    """

    meter: LatencyMeter
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return str(Constraint(Metric.LATENCY_MS, self.low, self.high))

    def violation(self, milliseconds: float) -> float:
        """How far a latency is beyond the limit, relative to it; 0 within."""
        below = 0.0 if self.low is None else (self.low - milliseconds) / self.low
        above = 0.0 if self.high is None else (milliseconds - self.high) / self.high
        return max(0.0, below, above)
