"""Divides a generation into shards that workers claim one at a time.

A shard is a run of neighbours in the trie of the generation (``search.prefixes``), so that little of what candidates
share is computed twice, and a range of the batches of images.  Sums of a batch do not depend on the others, so whoever
measures a shard, a generation's measures are put together from its shards in their order, to the same bits.

Sizes fall, as in guided self-scheduling (Polychronopoulos and Kuck 1987): each shard is a share of what is left. So
few borders cut what neighbours have in common, and nobody waits long for the last ones, whatever the speeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from search.prefixes import Path, build_trie, count_steps, depth_first


@dataclass(frozen=True, slots=True)
class Shard:
    """What one worker measures at a time.

    Attributes:
        members: positions of the candidates, neighbours in depth-first order.
        batches: range of the batches of images, the end excluded.
        steps: embeddings and blocks that it computes, over all of its batches.
    """

    members: tuple[int, ...]
    batches: tuple[int, int]
    steps: int


SHARDS_EACH = 4
"""Shards for each hand of a population with too few candidates for falling sizes."""

_SHARE = 2
"""A shard is what is left, divided by so many times the hands."""

_SMALLEST_SHARE = 48
"""No shard is smaller than a hand's part of the population divided by this: claiming one takes milliseconds."""


def plan_shards(paths: Sequence[Path], batches: int, hands: int, most: int | None = None) -> list[Shard]:
    """Shards of a generation, the largest ranges of candidates first.

    Candidates are divided first, as that costs only what neighbours on both sides of a border share; batches are
    divided when there are few candidates for each hand.

    Args:
        paths: of the candidates.
        batches: of images, that each candidate is measured on.
        hands: how many can measure at once; one has everything in one shard.
        most: candidates of a shard; None: any number.

    Raises:
        ValueError: ``batches``, ``hands`` or ``most`` is below 1.
    """
    if batches < 1 or hands < 1 or (most is not None and most < 1):
        raise ValueError(f"found {batches} batches, {hands} hands and {most} candidates, allowed is at least 1 of each")
    order = depth_first(paths)
    few = hands > 1 and len(order) < hands * SHARDS_EACH
    ranges = min(batches, max(1, round(hands * SHARDS_EACH / max(1, len(order))))) if few else 1
    shards: list[Shard] = []
    first = 0
    for size in _falling(len(order), hands, 1 if few else most or len(order)):
        members = tuple(order[first : first + size])
        first += size
        steps = count_steps(build_trie([paths[i] for i in members]))
        shards += [Shard(members, (a, b), steps * (b - a)) for a, b in _even(batches, ranges)]
    return shards


def _falling(count: int, hands: int, most: int) -> Iterator[int]:
    """Sizes of ranges that cover ``count`` items, each no larger than the one before, and the last ones small."""
    smallest = math.ceil(count / hands / _SMALLEST_SHARE)
    while count > 0:
        share = count if hands == 1 else max(smallest, math.ceil(count / hands / _SHARE))
        size = min(share, most, count)
        count -= size
        yield size


def _even(count: int, parts: int) -> list[tuple[int, int]]:
    """Ranges that cover ``count`` items, whose lengths differ by at most 1."""
    borders = [count * k // parts for k in range(parts + 1)]
    return list(pairwise(borders))
