"""How many images are scored at once: all of a batch, or as many as memory holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from workers.memory import OUT_OF_MEMORY, is_out_of_memory, out_of_memory

T = TypeVar("T")


class Room:
    """Remembers how many images fit, so that memory runs out a few times and not for each batch.

    Args:
        on_split: told the new number of images whenever it had to be halved. None: memory that runs out is an error.
    """

    def __init__(self, on_split: Callable[[int], None] | None = None) -> None:
        self._on_split = on_split
        self._at_once: int | None = None

    def fit(self, images: int, work: Callable[[Sequence[slice]], T], undo: Callable[[], None] = lambda: None) -> T:
        """Do some work on images, in parts of half as many and so on when memory runs out.

        Args:
            images: of the batch.
            work: given the parts, in order; they cover the batch.
            undo: called before the work is done again.

        Raises:
            OutOfMemory: not even one image at a time fits.
            Exception: what ``work`` raises, also for want of memory when nothing may be split.
        """
        while True:
            size = min(images, self._at_once or images)
            try:
                return work([slice(first, first + size) for first in range(0, images, size)])
            except OUT_OF_MEMORY as error:
                if self._on_split is None or not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise out_of_memory(error) from error
            # Out of the handler, which keeps the tensors of the frames that the error passed.
            undo()
            self._at_once = (size + 1) // 2
            self._on_split(self._at_once)
