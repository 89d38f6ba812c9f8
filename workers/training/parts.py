"""Micro-batches: the images of a step in parts that memory holds, whose gradients add up to those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.errors import OutOfMemory
from workers.memory import OUT_OF_MEMORY, is_out_of_memory

WHOLE = slice(None)
"""All images of a batch."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """How the images of a step are cut.

    Attributes:
        images: of a step; this is what the optimizer sees, however it is cut.
        size: images of one forward, at most ``images``.
        may_shrink: go on with smaller ones when memory runs out, rather than failing with advice.

    Raises:
        ValueError: no image, or more images in a part than in the step.
    """

    images: int
    size: int
    may_shrink: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.images:
            raise ValueError(f"micro-batch of {self.size} images, allowed is 1 to the {self.images} of a step")

    def parts(self) -> Iterator[tuple[slice, float]]:
        """Each part, and its share of the images: the weight of its losses, which are means over its images."""
        if self.size == self.images:
            yield WHOLE, 1.0
            return
        for first in range(0, self.images, self.size):
            last = min(first + self.size, self.images)
            yield slice(first, last), (last - first) / self.images

    def halved(self, reason: OutOfMemory) -> MicroBatches:
        """Parts of half the size, after memory ran out.

        Raises:
            OutOfMemory: they hold one image each already.
        """
        if self.size == 1:
            raise self.refusal(reason, "Not even one image at a time fits: take a smaller network or smaller images")
        return replace(self, size=(self.size + 1) // 2)

    def checked(self, before: MicroBatches, reason: OutOfMemory | None) -> MicroBatches:
        """These parts, which fit, if they may be as small as they had to become.

        Args:
            before: what was asked for.
            reason: why they became smaller; None: they did not.

        Raises:
            OutOfMemory: they must not shrink; it carries the ``suggested_batch_size``, which was tried.
        """
        if reason is None or self.may_shrink:
            return self
        reason.extra["suggested_batch_size"] = self.size
        raise before.refusal(
            reason, f"{self.size} fit: take a batch_size of {self.size}, or let recovery.out_of_memory be `split`"
        )

    def refusal(self, reason: OutOfMemory, advice: str) -> OutOfMemory:
        """The error that names the sizes and says what to do."""
        facts = {"batch_size": self.images, "micro_batch": self.size}
        detail = f"A step of {self.images} images, {self.size} at a time, needs more memory than there is. {advice}."
        return type(reason)(detail, extra={**reason.extra, **facts})


def in_parts_that_fit(forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Answers of a network to images (B, ...), from as many forwards as memory asks for.

    For what is done after a training that had to be computed in parts: it must not fail for its batch, hours later.

    Raises:
        Exception: what ``forward`` raises, also for want of memory when it was given one image.
    """
    try:
        return forward(images)
    except OUT_OF_MEMORY as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
    # Out of the handler, which keeps the tensors of the frames that the error passed.
    half = (len(images) + 1) // 2
    return torch.cat([in_parts_that_fit(forward, part) for part in (images[:half], images[half:])])
