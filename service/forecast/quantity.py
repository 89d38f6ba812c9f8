"""The unit that stages are measured in, apart from what computes it, as workers read it without numpy.

Multiply-accumulates alone say little of small networks, whose steps are spent on calling a few dozen operations, nor of
large optimizers. So work has several parts, each of which a machine does at a speed of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a stage.

    Attributes:
        macs: multiply-accumulates of forward passes; a backward pass counts twice.
        passes: of one block over one batch, counted likewise.
        updates: parameters times optimizer steps.
        processes: fresh ones that import the libraries, one after the other.
    """

    macs: float = 0.0
    passes: float = 0.0
    updates: float = 0.0
    processes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            macs=self.macs + other.macs,
            passes=self.passes + other.passes,
            updates=self.updates + other.updates,
            processes=self.processes + other.processes,
        )

    def times(self, factor: float) -> Work:
        """As often; processes too."""
        return Work(
            macs=self.macs * factor,
            passes=self.passes * factor,
            updates=self.updates * factor,
            processes=self.processes * factor,
        )
