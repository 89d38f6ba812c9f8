"""Candidates that begin alike, as a trie: what they share has to be computed only once.

Subnets of one set of weights that agree in width and in the genes of their first k blocks have the same tokens after
block k, so a population that is walked depth first computes each of these beginnings once and keeps one activation
for each open branch.  Evolution breeds such populations: children keep most of their parents' genes.

The module knows nothing of tokens or weights: a candidate is its path of steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from models.architecture import Architecture

Path = tuple[Hashable, ...]
"""Steps of a candidate; the first one is the embedding, and step k the k-th block."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step that is computed once for all candidates that share it.

    Attributes:
        level: number of steps before it: 0 for an embedding, k for the k-th block.
        members: positions of the candidates whose path leads through it, ascending.
        children: the next steps, in the order of the sorted paths.
    """

    level: int
    members: tuple[int, ...]
    children: tuple[Node, ...]


def path_of(arch: Architecture) -> Path:
    """The steps of a network: its width, then heads and hidden width of each block."""
    return (arch.embed_dim, *zip(arch.num_heads, arch.mlp_dims, strict=True))


def depth_first(paths: Sequence[Path]) -> list[int]:
    """Positions of the candidates in the order of a depth-first walk, so that neighbours share the most.

    Raises:
        TypeError: steps of one level that cannot be ordered.
    """
    return sorted(range(len(paths)), key=lambda i: (paths[i], i))


def build_trie(paths: Sequence[Path], shared: bool = True, among: Sequence[int] | None = None) -> tuple[Node, ...]:
    """The forest of all candidates, one tree for each width.

    Args:
        paths: of the candidates, none of them empty.
        shared: False gives each candidate a tree of its own, as if it were alone.
        among: positions of the candidates that take part; all of them when None.

    Raises:
        ValueError: a path is empty.
    """
    if not all(paths):
        raise ValueError("a path has no steps, allowed is at least the embedding")
    taking_part = set(range(len(paths)) if among is None else among)
    order = [i for i in depth_first(paths) if i in taking_part]
    groups = [order] if shared else [[i] for i in order]
    return tuple(node for group in groups if group for node in _nodes(paths, group, 0))


def count_steps(forest: Sequence[Node]) -> int:
    """Steps that a walk computes: embeddings and blocks."""
    return sum(1 + count_steps(node.children) for node in forest)


def _nodes(paths: Sequence[Path], order: Sequence[int], level: int) -> list[Node]:
    nodes: list[Node] = []
    start = 0
    while start < len(order):
        step, end = paths[order[start]][level], start + 1
        while end < len(order) and paths[order[end]][level] == step:
            end += 1
        members = order[start:end]
        longer = [i for i in members if len(paths[i]) > level + 1]
        nodes.append(Node(level, tuple(sorted(members)), tuple(_nodes(paths, longer, level + 1))))
        start = end
    return nodes
