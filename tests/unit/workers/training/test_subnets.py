from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from models.architecture import Architecture
from search.metrics import Metric, Window
from search.sampling import FeasibleSet
from search.space import Space
from tests.unit.search.spaces import small_space
from workers.training.subnets import Sampling, SubnetPlan

SPACE = small_space(embed_dim=(16, 20, 24, 32))
COUNTS = sorted(Metric.PARAMS_M.count_of(arch) for arch in SPACE.members())


def draws(plan: SubnetPlan, steps: int, space: Space = SPACE) -> list[tuple[Architecture, ...]]:
    return [plan.draw(space, np.random.default_rng(step)) for step in range(steps)]


def middle() -> FeasibleSet:
    """The members between the first and the third quarter of all sizes."""
    quarter = len(COUNTS) // 4
    return FeasibleSet(SPACE, [Window(Metric.PARAMS_M, COUNTS[quarter], COUNTS[-quarter])], 0)


def test_one_uniform_student_is_a_member_of_the_space() -> None:
    [student] = SubnetPlan().draw(SPACE, np.random.default_rng(4))
    assert student == SPACE.sample(np.random.default_rng(4))


def test_uniform_students_differ_within_a_step() -> None:
    students = {arch for step in draws(SubnetPlan(students=3), 20) for arch in step}
    assert len(students) > 30
    assert all(SPACE.contains(arch) for arch in students)


def test_sandwich_trains_largest_and_smallest_in_each_step() -> None:
    for step in draws(SubnetPlan(sampling=Sampling.SANDWICH, students=4), 10):
        assert (len(step), step[0], step[-1]) == (4, SPACE.largest(), SPACE.smallest())
    others = {arch for step in draws(SubnetPlan(sampling=Sampling.SANDWICH, students=4), 20) for arch in step[1:-1]}
    assert len(others) > 20


def test_students_of_a_window_are_within_it_and_its_ends_come_at_the_stated_rate() -> None:
    window = middle()
    smallest, largest = window.extremes
    plan = SubnetPlan(sampling=Sampling.WINDOW, students=2, window=window, extremes=0.4)
    genotypes = [arch.genotype for step in draws(plan, 500) for arch in step]
    assert all(window.meets_limits(genotype) for genotype in genotypes)
    found = Counter(genotypes)
    # A share of 0.2 each in 1000 draws has a standard deviation of 0.013.
    assert found[smallest] / 1000 == pytest.approx(0.2, abs=0.05)
    assert found[largest] / 1000 == pytest.approx(0.2, abs=0.05)


def test_without_extremes_a_window_is_drawn_from_exactly() -> None:
    window = middle()
    plan = SubnetPlan(sampling=Sampling.WINDOW, window=window)
    expected = []
    for step in range(20):
        rng = np.random.default_rng(step)
        rng.random()  # decides that it is no extreme
        expected.append(window.sample(rng))
    assert [arch.genotype for [arch] in draws(plan, 20)] == expected


def test_widths_share_a_body_and_run_from_the_widest_to_the_narrowest() -> None:
    middles = Counter[int]()
    for step in draws(SubnetPlan(sampling=Sampling.WIDTHS, students=3), 60):
        widths = [arch.embed_dim for arch in step]
        assert (widths[0], widths[2]) == (32, 16)
        middles[widths[1]] += 1
        assert len({(arch.depth, arch.num_heads, arch.mlp_ratio) for arch in step}) == 1
    assert set(middles) == {20, 24}
    assert min(middles.values()) > 15


def test_a_grid_with_fewer_widths_than_students_is_trained_whole() -> None:
    space = small_space(embed_dim=(16, 24))
    [step] = draws(SubnetPlan(sampling=Sampling.WIDTHS, students=4), 1, space)
    assert [arch.embed_dim for arch in step] == [24, 16]
    [only] = draws(SubnetPlan(sampling=Sampling.WIDTHS, students=2), 1, small_space(embed_dim=(16,)))
    assert [arch.embed_dim for arch in only] == [16]


@pytest.mark.parametrize("sampling", [Sampling.SANDWICH, Sampling.WIDTHS])
def test_extremes_need_two_students(sampling: Sampling) -> None:
    with pytest.raises(ValueError, match="1 students with sampling"):
        SubnetPlan(sampling=sampling)


def test_a_missing_or_empty_window_is_refused() -> None:
    empty = FeasibleSet(SPACE, [Window(Metric.PARAMS_M, None, 1)], 0)
    for window in (None, empty):
        with pytest.raises(ValueError, match="limits that a member of the space meets"):
            SubnetPlan(sampling=Sampling.WINDOW, window=window)
