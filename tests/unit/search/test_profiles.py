"""Limits on peak memory and latency, against trying every member."""

import math
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.architecture import Genotype
from search.constraints import Constraint, ConstraintProblemKind, check_constraints, reachable_range
from search.histograms import Axis, Kind, histogram_count
from search.latency import LatencyError, LatencyTable
from search.metrics import Metric, Window, counts_of, violation
from search.presets import PresetName, resolve
from search.profiles import MAX_COUNTS, TooManyProfiles
from search.sampling import FeasibleSet
from tests.unit.search.latency_tables import table_for
from tests.unit.search.spaces import small_space

SPACE = small_space()
TABLES = {"sums": table_for(SPACE), "joint": table_for(SPACE, joint=True)}
MEMBERS = {
    name: {arch.genotype: counts_of(arch, table) for arch in SPACE.members(num_classes=3)}
    for name, table in TABLES.items()
}


def brute_force(name: str, windows: list[Window]) -> set[Genotype]:
    return {g for g, counts in MEMBERS[name].items() if all(w.contains(counts[w.metric]) for w in windows)}


def windows_near(name: str) -> st.SearchStrategy[list[Window]]:
    """Limits beside what members cost, at least one of them on peak memory or latency."""

    def window(metric: Metric) -> st.SearchStrategy[Window]:
        costs = sorted({counts[metric] for counts in MEMBERS[name].values()})
        bound = st.none() | st.sampled_from(costs).flatmap(lambda count: st.integers(count - 1, count + 1))
        return st.builds(Window, st.just(metric), bound, bound)

    profiled = window(Metric.PEAK_MEM_MB) | window(Metric.LATENCY_MS)
    return st.tuples(profiled, st.lists(st.sampled_from(list(Metric)).flatmap(window), max_size=2)).map(
        lambda drawn: [drawn[0], *drawn[1]]
    )


cases = st.sampled_from(list(TABLES)).flatmap(lambda name: st.tuples(st.just(name), windows_near(name)))


@given(case=cases)
@settings(max_examples=40)
def test_members_are_exactly_those_that_trying_each_one_finds(case: tuple[str, list[Window]]) -> None:
    name, windows = case
    feasible = FeasibleSet(SPACE, windows, 3, TABLES[name])
    members = [feasible.member(index) for index in range(feasible.count)]
    assert len(set(members)) == len(members)
    assert set(members) == brute_force(name, windows)


@given(case=cases, seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_samples_and_extremes_meet_the_limits(case: tuple[str, list[Window]], seed: int) -> None:
    name, windows = case
    feasible = FeasibleSet(SPACE, windows, 3, TABLES[name])
    members = brute_force(name, windows)
    if not members:
        with pytest.raises(ValueError, match="no member of space 'small' meets the limits"):
            feasible.sample(np.random.default_rng(seed))
        return
    assert feasible.sample(np.random.default_rng(seed)) in members
    sizes = [MEMBERS[name][genotype][Metric.PARAMS_M] for genotype in feasible.extremes]
    assert set(feasible.extremes) <= members
    assert sizes == [bound(MEMBERS[name][g][Metric.PARAMS_M] for g in members) for bound in (min, max)]


@given(case=cases, k=st.integers(1, 4))
@settings(max_examples=40)
def test_the_nearest_is_the_least_distance_over_all_members(case: tuple[str, list[Window]], k: int) -> None:
    name, windows = case
    misses = FeasibleSet(SPACE, windows, 3, TABLES[name]).nearest(k)
    assert misses[0].violation == min(violation(windows, counts) for counts in MEMBERS[name].values())
    assert len({miss.genotype for miss in misses}) == k
    assert [miss.violation for miss in misses] == sorted(miss.violation for miss in misses)
    for miss in misses:
        assert miss.counts == MEMBERS[name][miss.genotype]
        assert miss.violation == violation(windows, miss.counts)


@pytest.mark.parametrize("name", TABLES)
def test_counts_and_limits_of_single_members(name: str) -> None:
    costs = sorted(counts[Metric.LATENCY_MS] for counts in MEMBERS[name].values())
    windows = [Window(Metric.LATENCY_MS, costs[20], costs[120])]
    feasible = FeasibleSet(SPACE, windows, 3, TABLES[name])
    allowed = brute_force(name, windows)
    for genotype, counts in MEMBERS[name].items():
        assert feasible.counts(genotype) == counts
        assert feasible.meets_limits(genotype) == (genotype in allowed)


def test_sampling_has_the_distribution_of_repeated_gene_wise_draws() -> None:
    latencies = sorted(counts[Metric.LATENCY_MS] for counts in MEMBERS["joint"].values())
    window = Window(Metric.LATENCY_MS, None, latencies[60])
    feasible = FeasibleSet(SPACE, [window], 3, TABLES["joint"])
    rng = np.random.default_rng(0)
    n = 5_000
    direct = Counter(feasible.sample(rng) for _ in range(n))
    weights = {g: 6.0 ** -int(g[0]) for g in brute_force("joint", [window])}
    for genotype, weight in weights.items():
        expected = n * weight / sum(weights.values())
        assert abs(direct[genotype] - expected) < 5 * expected**0.5 + 1
    assert set(direct) <= set(weights)


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("name", TABLES)
def test_the_reachable_range_is_that_of_all_members(name: str, metric: Metric) -> None:
    counts = [counts[metric] for counts in MEMBERS[name].values()]
    reach = reachable_range(SPACE, metric, 3, TABLES[name])
    assert (reach.low, reach.high) == (min(counts), max(counts))


def test_the_range_of_times_that_do_not_grow_with_the_genes_is_that_of_all_members() -> None:
    table = TABLES["sums"]
    odd = replace(table, block_ns={key: 10**6 - ns for key, ns in table.block_ns.items()})
    latencies = [odd.predict_ns(arch) for arch in SPACE.members(3)]
    reach = reachable_range(SPACE, Metric.LATENCY_MS, 3, odd)
    assert (reach.low, reach.high) == (min(latencies), max(latencies))


@pytest.mark.parametrize("metric", [Metric.PEAK_MEM_MB, Metric.LATENCY_MS])
def test_the_exact_minimum_is_met_and_just_below_it_nothing_is(metric: Metric) -> None:
    table = TABLES["joint"]
    low = reachable_range(SPACE, metric, 3, table)
    assert check_constraints(SPACE, [Constraint(metric, max=low.min)], 3, table) == ()
    (problem,) = check_constraints(SPACE, [Constraint(metric, max=(low.low - 1) / metric.unit)], 3, table)
    assert problem.kind is ConstraintProblemKind.UNSATISFIABLE
    assert problem.pointers == ("/0/max",)
    assert problem.reachable == (low,)


def test_limits_on_time_and_on_size_that_exclude_each_other_are_a_conflict() -> None:
    table = TABLES["sums"]
    fastest = reachable_range(SPACE, Metric.LATENCY_MS, 3, table).min
    largest = reachable_range(SPACE, Metric.PARAMS_M, 3).max
    limits = [Constraint(Metric.LATENCY_MS, max=fastest), Constraint(Metric.PARAMS_M, min=largest)]
    (problem,) = check_constraints(SPACE, limits, 3, table)
    assert problem.kind is ConstraintProblemKind.CONFLICT
    assert problem.pointers == ("/0", "/1")


def test_a_side_that_no_network_breaks_is_without_effect() -> None:
    slowest = reachable_range(SPACE, Metric.LATENCY_MS, 3, TABLES["sums"]).max
    (problem,) = check_constraints(SPACE, [Constraint(Metric.LATENCY_MS, max=slowest * 2)], 3, TABLES["sums"])
    assert problem.kind is ConstraintProblemKind.NOT_BINDING


def narrow(table: LatencyTable, preset: PresetName) -> None:
    space = resolve(preset)
    middle = table.predict_ns(space.centre(1000))
    start = time.process_time()
    feasible = FeasibleSet(space, [Window(Metric.LATENCY_MS, middle, middle + middle // 1000)], 1000, table)
    drawn = [space.decode(feasible.sample(np.random.default_rng(seed)), 1000) for seed in range(50)]
    gap = FeasibleSet(space, [Window(Metric.LATENCY_MS, middle + 1, middle + 2)], 1000, table)
    (miss, *_) = gap.nearest(3)
    assert time.process_time() - start < 20
    assert all(middle <= table.predict_ns(arch) <= middle * 1.001 for arch in drawn)
    assert len({arch.genotype for arch in drawn}) > 40
    assert gap.count > 0 or miss.violation < 1e-3


@pytest.mark.parametrize("preset", [PresetName.MASKTAS_SMALL, PresetName.MASKTAS_BASE_8_10])
def test_a_window_of_a_thousandth_of_the_latency_ends_at_once(preset: PresetName) -> None:
    narrow(table_for(resolve(preset), 1000), preset)


@pytest.mark.slow
def test_a_window_on_a_joint_table_ends_within_seconds_in_the_largest_space() -> None:
    narrow(table_for(resolve(PresetName.MASKTAS_BASE_8_10), 1000, joint=True), PresetName.MASKTAS_BASE_8_10)


@pytest.mark.parametrize("joint", [False, True])
def test_all_members_of_a_large_space_are_counted(joint: bool) -> None:
    space = resolve(PresetName.MASKTAS_TINY)
    feasible = FeasibleSet(space, [Window(Metric.LATENCY_MS)], 1000, table_for(space, 1000, joint=joint))
    assert feasible.count == space.size()
    assert space.contains(space.decode(feasible.member(feasible.count - 1)))


def test_numbers_of_members_beyond_64_bits_are_exact() -> None:
    space = small_space(depth=(20,), num_heads=(1, 2, 3, 4), mlp_ratio=(2.0, 2.5, 3.0, 4.0))
    feasible = FeasibleSet(space, [Window(Metric.PEAK_MEM_MB)], 3)
    assert feasible.count == space.size() == 16**20 * 2
    last = feasible.member(feasible.count - 1)
    assert space.contains(space.decode(last))
    assert last != feasible.member(feasible.count - 2)


def test_a_space_too_rich_for_its_limit_is_refused_by_axis() -> None:
    space = small_space(depth=(12,), num_heads=tuple(range(1, 9)), mlp_ratio=(2.0, 4.0))
    table = table_for(space, joint=True)
    assert 2 * 16 * histogram_count(16, 12) > MAX_COUNTS
    with pytest.raises(TooManyProfiles) as caught:
        FeasibleSet(space, [Window(Metric.LATENCY_MS, None, 10)], 3, table)
    assert [problem.pointer for problem in caught.value.problems] == ["/num_heads"]
    # The same space has few enough profiles when parts have times of their own, and lines are never too many.
    assert FeasibleSet(space, [Window(Metric.LATENCY_MS)], 3, table_for(space)).count == space.size()
    assert FeasibleSet(space, [Window(Metric.PARAMS_M)], 3, table).count == space.size()


@pytest.mark.parametrize(
    "axes",
    [
        {"depth": (1, 2), "num_heads": tuple(range(1, 65)), "mlp_ratio": tuple(1 + i / 4 for i in range(20))},
        {"depth": (100,), "embed_dim": tuple(range(16, 52, 4)), "num_heads": (1, 2, 3, 4)},
        {"depth": (12,), "num_heads": tuple(2**i for i in range(6)), "mlp_ratio": (1.0, 1.5, 2.5, 4.5, 8.5)},
    ],
    ids=["pairs", "widths", "product of both axes"],
)
def test_a_space_that_is_too_rich_is_refused_at_once(axes: dict[str, Any]) -> None:
    space = small_space(**axes)
    table = table_for(space, joint=len(space.num_heads) > 6)
    if len(space.num_heads) == 6:
        # Sums of such powers are all different, so that no two histograms cost the same.
        times = {(w, h, r): 10_007 * h**3 + round(1_000 * r**4) for w, h, r in table.block_ns}
        table = replace(table, block_ns=times)
    start = time.process_time()
    with pytest.raises(TooManyProfiles):
        FeasibleSet(space, [Window(Metric.LATENCY_MS)], 3, table)
    assert time.process_time() - start < 10


def test_a_table_without_entries_for_the_space_is_refused() -> None:
    wider = small_space(embed_dim=(16, 32))
    with pytest.raises(LatencyError, match="/embed_dim: found 32"):
        FeasibleSet(wider, [], 3, TABLES["sums"])


@given(kinds=st.integers(1, 4), depth=st.integers(1, 5), merged=st.booleans())
def test_orders_of_histograms_are_all_sequences_once(kinds: int, depth: int, merged: bool) -> None:
    made = [Kind(j, None, j // 2, 0, 0, j // 3) for j in range(kinds)]
    axis = Axis.of(made, depth, merged=merged)
    ways = [axis.unrank(i, rank) for i in range(len(axis)) for rank in range(int(axis.ways[i]))]
    assert len(ways) == len(set(ways)) == kinds**depth
    if not merged:
        assert len(axis) == histogram_count(kinds, depth)
    for i in range(len(axis)):
        first = axis.unrank(i, 0)
        assert axis.heads[i] == sum(kind.heads for kind in first)
        assert axis.live[i] == max(kind.live for kind in first)
    assert math.isclose(sum(int(w) for w in axis.ways), kinds**depth)
