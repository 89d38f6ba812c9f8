import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.architecture import Genotype
from search.lines import BlockSums
from search.metrics import Metric, Window, counts_of, violation
from search.presets import PresetName, resolve
from search.sampling import FeasibleSet
from search.space import Space
from tests.unit.search.spaces import small_space

SPACE = small_space()
MEMBERS = {arch.genotype: counts_of(arch) for arch in SPACE.members(num_classes=3)}
PARAMS = sorted(counts[Metric.PARAMS_M] for counts in MEMBERS.values())
MACS = sorted(counts[Metric.GMACS] for counts in MEMBERS.values())


def brute_force(windows: list[Window]) -> set[Genotype]:
    return {g for g, counts in MEMBERS.items() if all(w.contains(counts[w.metric]) for w in windows)}


def bounds(counts: list[int]) -> st.SearchStrategy[int | None]:
    near = st.sampled_from(counts).flatmap(lambda count: st.integers(count - 1, count + 1))
    return st.none() | near


windows_lists = st.lists(
    st.builds(Window, st.just(Metric.PARAMS_M), bounds(PARAMS), bounds(PARAMS))
    | st.builds(Window, st.just(Metric.GMACS), bounds(MACS), bounds(MACS)),
    max_size=3,
)


@given(windows=windows_lists)
def test_members_are_exactly_those_that_trying_each_one_finds(windows: list[Window]) -> None:
    feasible = FeasibleSet(SPACE, windows, num_classes=3)
    members = [feasible.member(index) for index in range(feasible.count)]
    assert len(set(members)) == len(members)
    assert set(members) == brute_force(windows)


@given(windows=windows_lists, seed=st.integers(0, 2**32))
def test_samples_meet_the_limits(windows: list[Window], seed: int) -> None:
    feasible = FeasibleSet(SPACE, windows, num_classes=3)
    if feasible.count:
        assert feasible.sample(np.random.default_rng(seed)) in brute_force(windows)
    else:
        with pytest.raises(ValueError, match="no member of space 'small' meets the limits"):
            feasible.sample(np.random.default_rng(seed))


@given(windows=windows_lists.filter(bool), k=st.integers(1, 4))
def test_nearest_are_the_least_distances_over_all_members(windows: list[Window], k: int) -> None:
    if not any(w.low is not None or w.high is not None for w in windows):
        return
    nearest = FeasibleSet(SPACE, windows, num_classes=3).nearest(k)
    # One member of each width, depth and pair of sums, as the sums are all that the distance depends on.
    classes = {}
    for genotype, counts in MEMBERS.items():
        depth = int(genotype[0])
        classes[genotype[-1], depth, sum(genotype[1 : 1 + depth]), sum(genotype[1 + depth : -1])] = counts
    expected = sorted(violation(windows, counts) for counts in classes.values())[:k]
    assert [miss.violation for miss in nearest] == expected
    assert all(violation(windows, MEMBERS[miss.genotype]) == miss.violation for miss in nearest)
    assert all(MEMBERS[miss.genotype] == miss.counts for miss in nearest)


def test_counts_and_limits_of_single_members() -> None:
    window = Window(Metric.PARAMS_M, PARAMS[10], PARAMS[100])
    feasible = FeasibleSet(SPACE, [window], num_classes=3)
    allowed = brute_force([window])
    for genotype, counts in MEMBERS.items():
        assert feasible.counts(genotype) == counts
        assert feasible.meets_limits(genotype) == (genotype in allowed)


def test_sampling_has_the_distribution_of_repeated_gene_wise_draws() -> None:
    window = Window(Metric.PARAMS_M, None, PARAMS[60])
    feasible = FeasibleSet(SPACE, [window], num_classes=3)
    rng = np.random.default_rng(0)
    n = 20_000
    direct = Counter(feasible.sample(rng) for _ in range(n))
    # Probability of a member under gene-wise uniform draws, renormalised to the feasible ones.
    weights = {g: 6.0 ** -int(g[0]) for g in brute_force([window])}
    total = sum(weights.values())
    for genotype, weight in weights.items():
        expected = n * weight / total
        assert abs(direct[genotype] - expected) < 5 * expected**0.5 + 1
    assert set(direct) <= set(weights)


@pytest.mark.parametrize("preset", list(PresetName))
def test_without_limits_all_members_of_large_spaces_are_counted(preset: PresetName) -> None:
    space = resolve(preset)
    feasible = FeasibleSet(space, [], num_classes=1000)
    assert feasible.count == space.size()
    assert space.contains(space.decode(feasible.member(feasible.count - 1)))
    with pytest.raises(IndexError):
        feasible.member(feasible.count)


@pytest.mark.parametrize("preset", [PresetName.MASKTAS_TINY, PresetName.MASKTAS_SMALL, PresetName.MASKTAS_BASE])
def test_a_window_of_a_thousandth_ends_at_once_with_members_or_nearest_misses(preset: PresetName) -> None:
    space = resolve(preset)
    middle = Metric.PARAMS_M.count_of(space.centre(1000))
    rng = np.random.default_rng(0)
    start = time.monotonic()
    wide = FeasibleSet(space, [Window(Metric.PARAMS_M, middle, middle + middle // 1000)], 1000)
    drawn = [space.decode(wide.sample(rng), 1000) for _ in range(200)]
    gap = FeasibleSet(space, [Window(Metric.PARAMS_M, middle + 1, middle + 2)], 1000)
    misses = gap.nearest(5)
    assert time.monotonic() - start < 5
    assert all(middle <= Metric.PARAMS_M.count_of(arch) <= middle * 1.001 for arch in drawn)
    assert len({arch.genotype for arch in drawn}) > 100
    assert gap.count == 0
    assert len(misses) == 5
    assert misses[0].violation == pytest.approx(1 / middle, rel=0.5)


def irregular_space() -> Space:
    return resolve("masktas-base", overrides={"mlp_ratio": [2.71, 3.14, 3.5, 4.0]})


def test_irregular_ratios_are_counted_exactly_too() -> None:
    space = irregular_space()
    start = time.monotonic()
    feasible = FeasibleSet(space, [], 1000)
    assert feasible.count == space.size()
    assert time.monotonic() - start < 10
    genotype = feasible.sample(np.random.default_rng(0))
    arch = space.decode(genotype, 1000)
    assert feasible.counts(genotype) == counts_of(arch)


def test_block_sums_rank_every_way_once_in_order() -> None:
    sums = BlockSums((1, 2, 4), 3)
    start, stop = sums.span(3, 4, 7)
    assert [sums.totals(3)[i] for i in range(start, stop)] == [4, 5, 6, 7]
    ways = [sums.unrank(3, start, rank) for rank in range(sums.ways(3, start, stop))]
    assert ways == sorted(set(ways), key=lambda way: (sum(way), way))
    assert all(4 <= sum(way) <= 7 for way in ways)
    assert len(ways) == sum(4 <= a + b + c <= 7 for a in (1, 2, 4) for b in (1, 2, 4) for c in (1, 2, 4))


@given(windows=windows_lists)
def test_extremes_are_the_smallest_and_the_largest_member(windows: list[Window]) -> None:
    feasible = FeasibleSet(SPACE, windows, num_classes=3)
    members = brute_force(windows)
    if not members:
        with pytest.raises(ValueError, match="none is the largest"):
            _ = feasible.extremes
        return
    sizes = [MEMBERS[genotype][Metric.PARAMS_M] for genotype in feasible.extremes]
    assert set(feasible.extremes) <= members
    assert sizes == [bound(MEMBERS[g][Metric.PARAMS_M] for g in members) for bound in (min, max)]
