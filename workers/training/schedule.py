"""Learning rate and batch order as pure functions of the step: resuming needs no state of either."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from workers.training.streams import numpy_stream


@dataclass(frozen=True, slots=True)
class WarmupCosine:
    """Linear warm-up to the peak, then half a cosine down to the floor.

    Attributes:
        peak: highest learning rate.
        warmup_steps: steps of the warm-up; may be 0.
        total_steps: steps in all.
        floor: learning rate that the cosine ends at.
        slow_steps: for so many first steps the rate is divided by ``slow_factor``, as in the phase in which Scala's
            released code trains the whole network alone.
        slow_factor: see there.
    """

    peak: float
    warmup_steps: int
    total_steps: int
    floor: float = 0.0
    slow_steps: int = 0
    slow_factor: float = 1.0

    @classmethod
    def of_share(cls, peak: float, warmup_fraction: float, total_steps: int, floor: float = 0.0) -> WarmupCosine:
        """With the warm-up given as a share of all steps."""
        return cls(peak, round(warmup_fraction * total_steps), total_steps, floor)

    def rate(self, step: int) -> float:
        """Learning rate of step ``step``, counted from 0; the first step of a warm-up is not wasted on rate 0."""
        return self._undivided(step) / (self.slow_factor if step < self.slow_steps else 1.0)

    def _undivided(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """Which images make up the batch of a step: each epoch is a fresh permutation, cut into equal batches.

    What does not fill a batch is left out of the epoch; the next permutation leaves out others.

    Attributes:
        images: number of images.
        batch_size: at most ``images``.
        seed: of the run.
        stage: names the stream, so that stages have orders of their own.
        repeats: how many copies of an image a batch holds, for augmentations that differ between them (Hoffer et al.
            2020). An epoch has as many batches as without, so it shows only this part of the images.
    """

    images: int
    batch_size: int
    seed: int
    stage: tuple[str | int, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.images:
            raise ValueError(f"batch_size {self.batch_size}, allowed is 1 to the {self.images} images")
        if not 1 <= self.repeats <= self.batch_size:
            raise ValueError(f"repeats {self.repeats}, allowed is 1 to the batch_size {self.batch_size}")

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch."""
        return self.images // self.batch_size

    def positions(self, step: int) -> NDArray[np.int64]:
        """Positions (batch_size,) of the images of step ``step``, counted from 0."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        distinct = math.ceil(self.batch_size / self.repeats)
        start = batch * distinct
        images = _permutation(self, epoch)[start : start + distinct]
        # Copies are far apart, so that mixing neighbours does not mix an image with itself.
        return np.resize(images, self.batch_size)


@lru_cache(maxsize=2)  # the steps of an epoch share one; it can be made again at any time
def _permutation(order: BatchOrder, epoch: int) -> NDArray[np.int64]:
    return numpy_stream(order.seed, *order.stage, "order", epoch).permutation(order.images)
