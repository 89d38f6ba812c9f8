"""What a search will take, as ranges: of wall time and device-hours by the speed of the workers, of memory and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from service.forecast.calibration import Calibration
from service.forecast.footprint import Footprint
from service.forecast.quantity import Work

_MARGIN = 0.5
"""Of what no formula here counts: reading, changing and mixing images, checkpoints, measuring. A round
figure, which ``benchmarks/forecast.py`` puts to the test."""

_FIXED_STARTS = 1.5
"""Starts of processes that every job has: its trainer, and what a supervisor does around it."""

_MEMORY_SPREAD = (0.8, 1.6)
"""Allocators keep what they were given, and small blocks add up."""

_S_PER_H = 3600.0


@dataclass(frozen=True, slots=True)
class Range:
    """A forecast with what it may well turn out to be."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job will take on a worker that does nothing else.

    Attributes:
        wall_seconds: from its start to its end.
        device_hours: over all its devices.
        memory_mb: of the trainer at its largest.
        disk_mb: added to store and run directory.
        stages: likely seconds by stage.
        workers: number of workers whose speed it rests on.
    """

    wall_seconds: Range
    device_hours: Range
    memory_mb: Range
    disk_mb: Range
    stages: dict[str, float]
    workers: int


def estimate(
    work: Mapping[str, Work],
    footprint: Footprint,
    workers: Sequence[Calibration],
    *,
    devices: int,
    checkpoint_s: float,
) -> Estimate | None:
    """Turn work into ranges; None while no worker has measured itself.

    Args:
        work: by stage.
        footprint: of the same job.
        workers: those that may run the job.
        devices: of the job.
        checkpoint_s: time between checkpoints inside a stage.
    """
    if not workers:
        return None
    likely = median(_seconds(work, worker) for worker in workers)
    low = min(_seconds(work, worker) / (1 + _MARGIN + worker.error) for worker in workers)
    high = max(_seconds(work, worker) * (1 + _MARGIN + worker.error) for worker in workers)
    wall = Range(low, likely, high)
    stages = {stage: median(worker.seconds(part) for worker in workers) for stage, part in work.items()}
    memory = footprint.memory_mb(median(worker.base_mb for worker in workers))
    least, most = footprint.disk_mb(stages, checkpoint_s)
    return Estimate(
        wall_seconds=wall,
        device_hours=Range(*(devices * seconds / _S_PER_H for seconds in (low, likely, high))),
        memory_mb=Range(*(memory * factor for factor in (_MEMORY_SPREAD[0], 1.0, _MEMORY_SPREAD[1]))),
        disk_mb=Range(least, (least + most) / 2, most),
        stages=stages,
        workers=len(workers),
    )


def _seconds(work: Mapping[str, Work], worker: Calibration) -> float:
    return sum(worker.seconds(part) for part in work.values()) + _FIXED_STARTS * worker.start_s
