import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.hypervolume import hypervolume, objective_values, reference_point
from search.metrics import Metric
from search.pareto import Goal, Objective
from tests.unit.search.spaces import small_space

SIDE = 5
AXES = (Objective("score", Goal.MAX), Objective("gmacs", Goal.MIN))


@given(st.integers(2, 4), st.data())
def test_it_counts_the_unit_cells_that_any_point_dominates(k: int, data: st.DataObject) -> None:
    point = st.tuples(*[st.integers(-1, SIDE) for _ in range(k)])
    points = data.draw(st.lists(point, max_size=6))
    goals = data.draw(st.tuples(*[st.sampled_from(Goal) for _ in range(k)]))
    cells = sum(
        any(all(low < own for low, own in zip(cell, p, strict=True)) for p in points)
        for cell in itertools.product(range(SIDE), repeat=k)
    )
    signed = [[own if goal is Goal.MAX else -own for own, goal in zip(p, goals, strict=True)] for p in points]
    assert hypervolume(signed, goals, [0.0] * k) == cells


def test_points_without_score_dominate_nothing() -> None:
    assert hypervolume([[math.nan, 1.0], [1.0, 1.0]], [Goal.MAX, Goal.MIN], [0.0, 3.0]) == 2.0


@pytest.mark.parametrize("reference", [[0.0], [0.0, math.nan], [0.0, 1.0, 2.0]])
def test_a_reference_that_fits_no_objectives_is_refused(reference: list[float]) -> None:
    with pytest.raises(ValueError, match="reference: found"):
        hypervolume([[1.0, 1.0]], [Goal.MAX, Goal.MIN], reference)


def test_the_reference_is_the_dearest_member_and_the_worst_first_score() -> None:
    space = small_space()
    point = reference_point(AXES, space, 0, [0.5, None, -1.0])
    assert point is not None
    assert point["score"] == -1.0
    assert point["gmacs"] == max(Metric.GMACS.count_of(arch) for arch in space.members()) / 1e9
    assert reference_point(AXES, space, 0, [None]) is None


def test_a_candidate_without_score_is_no_point() -> None:
    score, gmacs = objective_values(AXES, None, {"gmacs": 2.0})
    assert math.isnan(score)
    assert gmacs == 2.0
