"""Which widths of a slimmable network a step trains (Scala, Zhang et al. 2024, section 3.4; US-Net, Yu and Huang 2019).

A plan is a rule; the caller's generator, a function of the step, makes all draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import numpy as np

from models.slimmable import Slimmable


class WidthSampling(StrEnum):
    """How the widths between the smallest and the whole network are chosen. What lies between is the open grid."""

    PAPER = "paper"  # one of each half of the open grid; an odd one in the middle belongs to the lower half
    CODE = "code"  # the same, the middle in the upper half, as in Scala's released code
    OFF = "off"  # two of all: Scala without stable sampling
    USNET = "usnet"  # the same draws under their older name, the sandwich rule


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthPlan:
    """How the widths of a step are drawn.

    Both probabilities are ours, for widths between those of a coarse grid: a network that was trained at a few widths
    only dips between them, most of all next to the smallest, which every step trains.

    Attributes:
        net: the slimmable network.
        sampling: how widths between smallest and largest are chosen.
        off_grid: probability with which one of them is moved off the grid, to any other width strictly between its
            neighbours there. 0 is Scala.
        off_grid_smallest: the same of the smallest, which moves to widths below its one neighbour. 0 is Scala.

    Raises:
        ValueError: no probability.
    """

    net: Slimmable
    sampling: WidthSampling = WidthSampling.PAPER
    off_grid: float = 0.0
    off_grid_smallest: float = 0.0

    def __post_init__(self) -> None:
        for name in ("off_grid", "off_grid_smallest"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)}, allowed is 0 to 1")

    def draw(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Widths of a head that a step trains, descending, the whole network first.

        Halves that are empty, as on grids of two or three widths, give nothing. Two independent draws may be equal;
        that width is then trained twice, as the sums of both papers say.
        """
        smallest, *between, largest = self.net.head_dims
        drawn = [self._moved(width, rng) for width in self._between(between, rng)]
        return (largest, *sorted([*drawn, self._moved(smallest, rng)], reverse=True))

    def _between(self, grid: Sequence[int], rng: np.random.Generator) -> list[int]:
        match self.sampling:
            case WidthSampling.PAPER:
                middle = (len(grid) + 1) // 2
            case WidthSampling.CODE:
                middle = len(grid) // 2
            case WidthSampling.OFF | WidthSampling.USNET:
                return [_one_of(grid, rng) for _ in range(2 if grid else 0)]
            case _:
                assert_never(self.sampling)
        return [_one_of(half, rng) for half in (grid[:middle], grid[middle:]) if half]

    def _moved(self, width: int, rng: np.random.Generator) -> int:
        """A width of the grid, or with the stated probability another one between its neighbours."""
        grid = self.net.head_dims
        at = grid.index(width)
        probability = self.off_grid if at else self.off_grid_smallest
        near = [other for other in range(grid[max(0, at - 1)] + 1, grid[at + 1]) if other != width]
        # Nothing is drawn where nothing can move, so that plans without these options keep their draws.
        return _one_of(near, rng) if near and probability and rng.random() < probability else width


def _one_of(widths: Sequence[int], rng: np.random.Generator) -> int:
    return widths[int(rng.integers(len(widths)))]
