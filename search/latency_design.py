"""Which networks to measure for a latency table: few, but such that every part's time follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.architecture import Architecture, Genotype
from search.space import Space

_PER_UNKNOWN = 3
"""Networks for each time that is to be found, unless the user says otherwise: their errors average out."""


@dataclass(frozen=True, slots=True)
class Design:
    """Networks to measure.

    Attributes:
        fitted: what the table is fitted to.
        held_out: other networks, drawn at random, that tell how far its predictions are off.
    """

    fitted: tuple[Architecture, ...]
    held_out: tuple[Architecture, ...]

    @property
    def networks(self) -> tuple[Architecture, ...]:
        """All of them, each once."""
        return self.fitted + self.held_out


def least_networks(space: Space) -> int:
    """Fewest networks that a table of the space can be fitted to."""
    return len(space.embed_dim) * len(_pure(space, space.embed_dim[0], 0))


def default_networks(space: Space) -> int:
    """Networks that a table of the space is fitted to, unless the user says otherwise."""
    unknowns = len(space.embed_dim) * (1 + len(space.num_heads) + len(space.mlp_ratio))
    return min(max(least_networks(space), _PER_UNKNOWN * unknowns), space.size())


def design(space: Space, num_classes: int, networks: int, held_out: int, rng: np.random.Generator) -> Design:
    """Choose networks to measure.

    First come, at each width, networks whose blocks are all alike, shallow and deep ones, since the fixed part and the
    parts of a block are told apart best between extremes. Random members of the space follow, at each width in turn.

    Args:
        space: whose members the table is to price.
        num_classes: of their head.
        networks: how many the table is fitted to; at least :func:`least_networks` are taken.
        held_out: how many it is judged by; small spaces have fewer.
        rng: of the random members.
    """
    fitted = {arch.genotype: arch for width in space.embed_dim for arch in _pure(space, width, num_classes)}
    _fill(fitted, {}, space, num_classes, networks, rng)
    apart: dict[Genotype, Architecture] = {}
    _fill(apart, fitted, space, num_classes, held_out, rng)
    return Design(tuple(fitted.values()), tuple(apart.values()))


def _pure(space: Space, width: int, num_classes: int) -> list[Architecture]:
    """Networks of one width with blocks all alike, in which each head count and each ratio occurs shallow and deep."""
    depths = dict.fromkeys((space.depth[0], space.depth[-1]))
    found = []
    for turn, depth in enumerate(depths):
        for i in range(max(len(space.num_heads), len(space.mlp_ratio))):
            # The deep ones pair them otherwise, or their parts could not be told apart.
            heads = space.num_heads[i % len(space.num_heads)]
            ratio = space.mlp_ratio[(i + turn) % len(space.mlp_ratio)]
            found.append(space.decode((depth, *(ratio,) * depth, *(heads,) * depth, width), num_classes))
    return list({arch.genotype: arch for arch in found}.values())


def _fill(
    chosen: dict[Genotype, Architecture],
    taken: dict[Genotype, Architecture],
    space: Space,
    num_classes: int,
    count: int,
    rng: np.random.Generator,
) -> None:
    """Add random members until there are ``count`` or no others are left; widths take turns."""
    left = space.size() - len(chosen) - len(taken)
    rarely = 50 * (count + 1)  # a space so small that draws repeat themselves is used up soon, or nearly
    while len(chosen) < count and left > 0 and rarely > 0:
        rarely -= 1
        width = space.embed_dim[len(chosen) % len(space.embed_dim)]
        drawn = space.sample(rng, num_classes).genotype
        genotype = (*drawn[:-1], width)
        if genotype not in chosen and genotype not in taken:
            chosen[genotype] = space.decode(genotype, num_classes)
            left -= 1
