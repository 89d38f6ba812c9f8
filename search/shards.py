"""Divides a generation into shards that workers claim one at a time.

A shard is a run of neighbours in the trie of the generation (``search.prefixes``), so that little of what candidates
share is computed twice, and a range of the batches of images.  Sums of a batch do not depend on the others, so whoever
measures a shard, a generation's measures are put together from its shards in their order, to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def plan_shards(paths: Sequence[Path], batches: int, wanted: int) -> list[Shard]:
    """Shards of a generation, about ``wanted`` of them and no more than there is to divide.

    Candidates are divided first, as that costs only what neighbours on both sides of a border share; batches are
    divided when there are more shards than candidates.

    Args:
        paths: of the candidates.
        batches: of images, that each candidate is measured on.
        wanted: number of shards; a few times the number of workers evens out their speeds.

    Raises:
        ValueError: ``batches`` or ``wanted`` is below 1.
    """
    if batches < 1 or wanted < 1:
        raise ValueError(f"found {batches} batches and {wanted} shards, allowed is at least 1 of each")
    if not paths:
        return []
    order = depth_first(paths)
    groups = min(len(order), wanted)
    ranges = min(batches, max(1, round(wanted / groups)))
    shards: list[Shard] = []
    for first, last in _even(len(order), groups):
        members = tuple(order[first:last])
        steps = count_steps(build_trie([paths[i] for i in members]))
        shards += [Shard(members, (a, b), steps * (b - a)) for a, b in _even(batches, ranges)]
    return shards


def _even(count: int, parts: int) -> list[tuple[int, int]]:
    """Ranges that cover ``count`` items, whose lengths differ by at most 1."""
    borders = [count * k // parts for k in range(parts + 1)]
    return list(pairwise(borders))
