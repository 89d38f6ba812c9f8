from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.prefixes import Path, build_trie, count_steps
from search.shards import plan_shards

paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple), min_size=1, max_size=12)


@given(paths, st.integers(1, 8), st.integers(1, 100))
def test_every_candidate_is_measured_once_on_every_batch(given_paths: list[Path], batches: int, hands: int) -> None:
    shards = plan_shards(given_paths, batches, hands)
    looks = [(i, batch) for shard in shards for i in shard.members for batch in range(*shard.batches)]
    assert sorted(looks) == [(i, batch) for i in range(len(given_paths)) for batch in range(batches)]
    assert len(shards) <= len(given_paths) * batches


@given(paths, st.integers(1, 8))
def test_one_shard_costs_what_the_shared_trie_does(given_paths: list[Path], batches: int) -> None:
    [shard] = plan_shards(given_paths, batches, 1)
    assert shard.steps == count_steps(build_trie(given_paths)) * batches


@given(paths, st.integers(1, 8), st.integers(1, 100))
def test_dividing_costs_no_more_than_measuring_each_candidate_alone(
    given_paths: list[Path], batches: int, hands: int
) -> None:
    steps = sum(shard.steps for shard in plan_shards(given_paths, batches, hands))
    assert count_steps(build_trie(given_paths)) * batches <= steps <= sum(map(len, given_paths)) * batches


def test_batches_are_divided_when_there_are_few_candidates_for_each_hand() -> None:
    shards = plan_shards([(1, 1), (1, 2)], batches=8, hands=2)
    assert [shard.batches for shard in shards] == [(0, 2), (2, 4), (4, 6), (6, 8)] * 2
    assert len(plan_shards([(1, 1), (1, 2)], batches=8, hands=250)) == 16


def test_sizes_fall_and_the_last_shards_are_small() -> None:
    sizes = [len(shard.members) for shard in plan_shards([(1, i) for i in range(600)], batches=8, hands=2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 150  # each of two hands gets a half of its part at once
    assert len(sizes) < 20
    assert sizes[-2] == 7  # 600 candidates for 2 hands, a forty-eighth of each part


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9))
def test_no_shard_is_larger_than_a_message_holds(candidates: int, hands: int, most: int) -> None:
    sizes = [len(shard.members) for shard in plan_shards([(i,) for i in range(candidates)], 1, hands, most)]
    assert sum(sizes) == candidates
    assert max(sizes) <= most


def test_nothing_is_divided_into_nothing() -> None:
    assert plan_shards([], 4, 10) == []


@pytest.mark.parametrize(("batches", "hands", "most"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_plan_without_batches_hands_or_candidates_is_refused(batches: int, hands: int, most: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_shards([(1,)], batches, hands, most)
