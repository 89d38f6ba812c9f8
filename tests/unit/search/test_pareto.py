import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from search.pareto import Goal, GrowingFront, pareto_front

# A coarse grid makes ties and duplicates common.
grids = st.integers(1, 4).flatmap(
    lambda k: hnp.arrays(
        np.float64, st.tuples(st.integers(0, 30), st.just(k)), elements=st.sampled_from([0.0, 1, 2, np.nan])
    )
)
goal_lists = st.lists(st.sampled_from(Goal), min_size=4, max_size=4)


def dominates(a: np.ndarray, b: np.ndarray, goals: list[Goal]) -> bool:
    better = [x < y if goal is Goal.MIN else x > y for x, y, goal in zip(a, b, goals, strict=True)]
    return any(better) and all(win or x == y for win, x, y in zip(better, a, b, strict=True))


@given(points=grids, goals=goal_lists, data=st.data())
def test_the_front_is_exactly_what_nobody_dominates(points: np.ndarray, goals: list[Goal], data: st.DataObject) -> None:
    goals = goals[: points.shape[1]]
    feasible = np.array(data.draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points))), dtype=bool)
    usable = [i for i in range(len(points)) if feasible[i] and not np.isnan(points[i]).any()]
    expected = {i for i in usable if not any(dominates(points[j], points[i], goals) for j in usable)}
    front = pareto_front(points, goals, feasible)
    assert len(front) == len(expected)
    assert set(front.tolist()) == expected


@given(points=grids, goals=goal_lists, seed=st.integers(0, 100))
def test_the_front_does_not_depend_on_the_order_of_the_points(points: np.ndarray, goals: list[Goal], seed: int) -> None:
    goals = goals[: points.shape[1]]
    shuffled = np.random.default_rng(seed).permutation(len(points))
    front = points[pareto_front(points, goals)]
    np.testing.assert_array_equal(front, points[shuffled][pareto_front(points[shuffled], goals)])


def test_the_front_runs_along_the_first_objective() -> None:
    points = [[0.7, 3], [0.9, 5], [0.6, 4], [0.8, 4], [0.9, 5], [0.5, 1]]
    assert pareto_front(points, [Goal.MAX, Goal.MIN]).tolist() == [1, 4, 3, 0, 5]
    assert pareto_front(points, [Goal.MIN, Goal.MAX]).tolist() == [5, 2, 1, 4]


def test_infeasible_points_neither_appear_nor_dominate() -> None:
    points = [[1.0, 1.0], [2.0, 2.0]]
    assert pareto_front(points, [Goal.MIN, Goal.MIN], [False, True]).tolist() == [1]


def test_no_points_give_an_empty_front() -> None:
    assert pareto_front(np.empty((0, 2)), [Goal.MIN, Goal.MAX]).tolist() == []


@pytest.mark.parametrize("k", [2, 3, 4])
def test_ten_thousand_points_take_seconds_even_when_most_are_on_the_front(k: int) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(10_000, k))
    points[:, 0] = -points[:, 1:].sum(axis=1)  # a plane: nobody dominates anybody, the worst case
    start = time.monotonic()
    front = pareto_front(points, [Goal.MIN] * k)
    assert time.monotonic() - start < 10
    assert len(front) == 10_000


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"found shape \(1, 3\), allowed is \(n, 2\)"):
        pareto_front([[1, 2, 3]], [Goal.MIN, Goal.MAX])
    with pytest.raises(ValueError, match=r"found shape \(2,\)"):
        pareto_front([1, 2], [Goal.MIN])
    with pytest.raises(ValueError, match=r"feasible: found shape \(1,\), allowed is \(2,\)"):
        pareto_front([[1.0], [2.0]], [Goal.MIN], [True])


@given(points=grids, goals=goal_lists, size=st.integers(1, 7), data=st.data())
def test_a_front_that_grows_is_the_front_of_all_points_after_each_batch(
    points: np.ndarray, goals: list[Goal], size: int, data: st.DataObject
) -> None:
    goals = goals[: points.shape[1]]
    feasible = np.array(data.draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points))), dtype=bool)
    front, members = GrowingFront(goals), set[int]()
    for first in range(0, len(points), size):
        end = first + size
        move = front.add(first, points[first:end], feasible[first:end])
        members = (members | set(move.joined)) - set(move.left)
        assert front.members == tuple(pareto_front(points[:end], goals, feasible[:end]).tolist())
        assert members == set(front.members)


def test_a_front_that_grows_refuses_numbers_that_it_has_seen() -> None:
    front = GrowingFront([Goal.MIN])
    front.add(3, [[1.0]])
    with pytest.raises(ValueError, match="first: found 3, allowed is above 3"):
        front.add(3, [[0.5]])
