"""Which subnets of a supernet a step trains: one or several, from everywhere, with the extremes, or within limits.

A plan is a rule; the caller's generator, a function of the step, makes all draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from models.architecture import Architecture
from search.sampling import FeasibleSet
from search.space import Space


class Sampling(StrEnum):
    """How the students of a step are chosen."""

    UNIFORM = "uniform"  # each gene uniform (AutoFormer, Chen et al. 2021, section 3.3)
    SANDWICH = "sandwich"  # largest, smallest, the rest uniform (US-Net, Yu and Huang 2019, section 3.2)
    WINDOW = "window"  # uniform under the condition that the job's limits are met, at times an extreme of these
    WIDTHS = "widths"  # one depth, heads and ratios at the largest, the smallest and random widths


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPlan:
    """How the architectures of a step are drawn from a space.

    Attributes:
        sampling: how they are chosen.
        students: how many a step trains, at least 2 where largest and smallest are among them.
        window: the members within the job's limits, for ``WINDOW``.
        extremes: probability with which a student of a window is its smallest or its largest member.

    Raises:
        ValueError: too few students, or a window that is missing or empty.
    """

    sampling: Sampling = Sampling.UNIFORM
    students: int = 1
    window: FeasibleSet | None = None
    extremes: float = 0.0

    def __post_init__(self) -> None:
        least = 2 if self.sampling in (Sampling.SANDWICH, Sampling.WIDTHS) else 1
        if self.students < least:
            raise ValueError(f"{self.students} students with sampling {self.sampling}, allowed is at least {least}")
        if self.sampling is Sampling.WINDOW and (self.window is None or not self.window.count):
            raise ValueError("sampling within a window needs limits that a member of the space meets")

    def draw(self, space: Space, rng: np.random.Generator) -> tuple[Architecture, ...]:
        """The students of a step, without a head; largest first and smallest last where these are among them."""
        match self.sampling:
            case Sampling.UNIFORM:
                return tuple(space.sample(rng) for _ in range(self.students))
            case Sampling.SANDWICH:
                between = [space.sample(rng) for _ in range(self.students - 2)]
                return (space.largest(), *between, space.smallest())
            case Sampling.WINDOW:
                return tuple(self._within(space, rng) for _ in range(self.students))
            case Sampling.WIDTHS:
                return self._widths(space, rng)

    def largest(self, space: Space) -> Architecture | None:
        """The largest student that a step may draw; None when every step trains it."""
        if self.sampling is Sampling.SANDWICH or space.size() == 1:
            return None
        if self.sampling is Sampling.WINDOW:
            assert self.window is not None, "checked when this was made"
            return space.decode(self.window.extremes[1])
        return space.largest()

    def _within(self, space: Space, rng: np.random.Generator) -> Architecture:
        assert self.window is not None, "checked when this was made"
        if rng.random() < self.extremes:
            return space.decode(self.window.extremes[rng.integers(2)])
        return space.decode(self.window.sample(rng))

    def _widths(self, space: Space, rng: np.random.Generator) -> tuple[Architecture, ...]:
        """One draw of all genes but the width, which runs over the grid's ends and distinct random entries."""
        body = space.sample(rng)
        smallest, *inner, largest = _ends(space.embed_dim)
        count = min(self.students - 2, len(inner))
        between = sorted(inner[i] for i in rng.permutation(len(inner))[:count])
        widths = dict.fromkeys((largest, *reversed(between), smallest))
        return tuple(replace(body, embed_dim=width) for width in widths)


def _ends(widths: Sequence[int]) -> Sequence[int]:
    """At least two entries: a grid of one width has it at both ends."""
    return widths if len(widths) > 1 else (*widths, *widths)
