from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search import presets
from search.prefixes import Node, Path, build_trie, count_steps, depth_first, path_of

paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple), max_size=12)


def walked(forest: Sequence[Node], given_paths: Sequence[Path]) -> dict[int, list[object]]:
    """The steps of each candidate as a walk meets them."""
    found: dict[int, list[object]] = {i: [] for i in range(len(given_paths))}
    waiting = list(forest)
    while waiting:
        node = waiting.pop()
        steps = {given_paths[i][node.level] for i in node.members}
        assert len(steps) == 1, "all members of a node agree in its step"
        for i in node.members:
            assert len(found[i]) == node.level, "a parent comes before its children"
            found[i].append(given_paths[i][node.level])
        waiting.extend(node.children)
    return found


@given(paths, st.booleans())
def test_every_candidate_takes_all_of_its_steps_in_order(given_paths: list[Path], shared: bool) -> None:
    found = walked(build_trie(given_paths, shared), given_paths)
    assert found == {i: list(path) for i, path in enumerate(given_paths)}


@given(paths)
def test_each_beginning_is_computed_once(given_paths: list[Path]) -> None:
    beginnings = {path[:k] for path in given_paths for k in range(1, len(path) + 1)}
    assert count_steps(build_trie(given_paths)) == len(beginnings)


@given(paths)
def test_without_sharing_every_step_of_every_candidate_is_computed(given_paths: list[Path]) -> None:
    assert count_steps(build_trie(given_paths, shared=False)) == sum(map(len, given_paths))


@given(paths, st.integers(1, 4))
def test_candidates_that_begin_alike_are_neighbours_in_depth_first_order(given_paths: list[Path], level: int) -> None:
    heads = [given_paths[i][:level] for i in depth_first(given_paths)]
    runs = len([*groupby(heads)])
    assert runs == len(set(heads)), "all who share a beginning stand together"


def test_path_of_a_network_names_what_its_tokens_depend_on() -> None:
    space = presets.resolve("micro", img_size=8, in_chans=1)
    arch = space.largest()
    assert path_of(arch) == (arch.embed_dim, *zip(arch.num_heads, arch.mlp_dims, strict=True))


def test_a_candidate_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps"):
        build_trie([(1,), ()])
