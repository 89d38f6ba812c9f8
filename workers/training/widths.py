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

    Attributes:
        net: the slimmable network.
        sampling: how widths between smallest and largest are chosen.
    """

    net: Slimmable
    sampling: WidthSampling = WidthSampling.PAPER

    def draw(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Widths of a head that a step trains, descending: the whole network first, the smallest last.

        Halves that are empty, as on grids of two or three widths, give nothing. Two independent draws may be equal;
        that width is then trained twice, as the sums of both papers say.
        """
        smallest, *between, largest = self.net.head_dims
        return (largest, *sorted(self._between(between, rng), reverse=True), smallest)

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


def _one_of(widths: Sequence[int], rng: np.random.Generator) -> int:
    return widths[int(rng.integers(len(widths)))]
