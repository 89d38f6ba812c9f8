from itertools import pairwise
from typing import Any

import pytest

from search.constraints import Constraint, ConstraintProblemKind, check_constraints, reachable_range, violation
from search.cost import cost
from search.errors import ConstraintError
from search.metrics import FORMULA_METRICS, Metric, Window
from search.presets import resolve
from tests.unit.search.spaces import small_space

SPACE = small_space()
CLASSES = 3
PARAMS = sorted({Metric.PARAMS_M.count_of(arch) for arch in SPACE.members(CLASSES)})


def params(minimum: int | None = None, maximum: int | None = None) -> Constraint:
    unit = Metric.PARAMS_M.unit
    return Constraint(
        Metric.PARAMS_M,
        None if minimum is None else minimum / unit,
        None if maximum is None else maximum / unit,
    )


def macs(minimum: int | None = None, maximum: int | None = None) -> Constraint:
    unit = Metric.GMACS.unit
    return Constraint(
        Metric.GMACS, None if minimum is None else minimum / unit, None if maximum is None else maximum / unit
    )


@pytest.mark.parametrize("metric", FORMULA_METRICS)
def test_reachable_range_is_that_of_all_members(metric: Metric) -> None:
    counts = [metric.count_of(arch) for arch in SPACE.members(CLASSES)]
    reach = reachable_range(SPACE, metric, CLASSES)
    assert (reach.low, reach.high) == (min(counts), max(counts))
    assert reach.to_json() == {"metric": metric, "min": min(counts) / metric.unit, "max": max(counts) / metric.unit}


def test_the_reachable_range_includes_the_head() -> None:
    headless, headed = (reachable_range(SPACE, Metric.PARAMS_M, classes) for classes in (0, 1000))
    assert headed.low - headless.low == 1000 * (16 + 1)


@pytest.mark.parametrize("count", [5_902_600, 21_955_048, 5_273_896, 1, 123_456_789])
def test_a_reported_cost_is_an_exact_limit(count: int) -> None:
    assert params(count, count).window == Window(Metric.PARAMS_M, count, count)


def test_limits_between_two_counts_round_inwards() -> None:
    constraint = Constraint(Metric.PARAMS_M, 1.0000001, 1.0000039)
    assert constraint.window == Window(Metric.PARAMS_M, 1_000_001, 1_000_003)


def test_a_limit_at_the_exact_minimum_is_met() -> None:
    assert check_constraints(SPACE, [params(maximum=PARAMS[0])], CLASSES) == ()


def test_a_limit_below_the_smallest_is_unsatisfiable_and_carries_the_range() -> None:
    (problem,) = check_constraints(SPACE, [params(maximum=PARAMS[0] - 1)], CLASSES)
    assert problem.kind is ConstraintProblemKind.UNSATISFIABLE
    assert problem.is_error
    assert problem.pointers == ("/0/max",)
    assert problem.reachable == (reachable_range(SPACE, Metric.PARAMS_M, CLASSES),)
    assert f"reaches from {PARAMS[0] / 1e6} to {PARAMS[-1] / 1e6}" in problem.detail


def test_a_minimum_above_the_largest_is_unsatisfiable() -> None:
    (problem,) = check_constraints(SPACE, [params(minimum=PARAMS[-1] + 1)], CLASSES)
    assert (problem.kind, problem.pointers) == (ConstraintProblemKind.UNSATISFIABLE, ("/0/min",))


def test_a_window_between_two_neighbouring_members_is_unsatisfiable_and_names_them() -> None:
    low, high = next((a, b) for a, b in pairwise(PARAMS) if b - a > 3)
    (problem,) = check_constraints(SPACE, [params(low + 1, high - 1)], CLASSES)
    assert (problem.kind, problem.pointers) == (ConstraintProblemKind.UNSATISFIABLE, ("/0",))
    assert str(low / 1e6) in problem.detail
    assert str(high / 1e6) in problem.detail


def test_limits_that_exclude_nobody_are_warned_of() -> None:
    problems = check_constraints(SPACE, [params(1, PARAMS[-1] + 1)], CLASSES)
    assert [problem.pointers for problem in problems] == [("/0/max",), ("/0/min",)]
    assert all(problem.kind is ConstraintProblemKind.NOT_BINDING and not problem.is_error for problem in problems)
    assert check_constraints(SPACE, [params(PARAMS[0], PARAMS[-1])], CLASSES) == ()


def test_a_conflicting_pair_is_named_with_both_ranges() -> None:
    largest = Metric.GMACS.count_of(SPACE.smallest(CLASSES))
    harmless = params(maximum=PARAMS[-1])
    problems = check_constraints(SPACE, [harmless, params(minimum=PARAMS[-1]), macs(maximum=largest)], CLASSES)
    (problem,) = problems
    assert problem.kind is ConstraintProblemKind.CONFLICT
    assert problem.pointers == ("/1", "/2")
    assert {reach.metric for reach in problem.reachable} == {Metric.PARAMS_M, Metric.GMACS}
    assert "the nearest has gmacs" in problem.detail


def test_a_conflict_inside_the_corners_is_found_exactly() -> None:
    # Many parameters at few MACs: both within reach, together only at the edge of the space.
    members = [cost(arch) for arch in SPACE.members(CLASSES)]
    edge = {c.params: min(m.macs for m in members if m.params >= c.params) for c in members}
    for count, least_macs in edge.items():
        assert check_constraints(SPACE, [params(minimum=count), macs(maximum=least_macs)], CLASSES) == ()
        problems = check_constraints(SPACE, [params(minimum=count), macs(maximum=least_macs - 1)], CLASSES)
        assert problems
        assert all(problem.is_error for problem in problems)


def test_three_limits_that_only_conflict_together_are_all_named() -> None:
    members = [cost(arch) for arch in SPACE.members(CLASSES)]
    # Of these parameters all are dear, yet somebody with more parameters and somebody with fewer is cheaper.
    dear, limit = next(
        (m.params, least - 1)
        for m in members
        if (least := min(o.macs for o in members if o.params == m.params))
        and any(o.params > m.params and o.macs < least for o in members)
        and any(o.params < m.params and o.macs < least for o in members)
    )
    limits = [params(minimum=dear), params(maximum=dear), macs(maximum=limit)]
    (problem,) = check_constraints(SPACE, limits, CLASSES)
    assert problem.kind is ConstraintProblemKind.CONFLICT
    assert problem.pointers == ("/0", "/1", "/2")


def test_two_limits_on_one_metric_hold_both() -> None:
    (problem,) = check_constraints(SPACE, [params(maximum=PARAMS[3]), params(minimum=PARAMS[5])], CLASSES)
    assert (problem.kind, problem.pointers) == (ConstraintProblemKind.CONFLICT, ("/0", "/1"))


def test_published_budget_of_the_tiny_space_is_satisfiable() -> None:
    constraints = [Constraint(Metric.PARAMS_M, max=6.0), Constraint(Metric.GMACS, max=1.4)]
    assert check_constraints(resolve("masktas-tiny"), constraints, 1000) == ()


def test_violation_is_relative_and_zero_when_met() -> None:
    constraints = [Constraint(Metric.PARAMS_M, max=2.0), Constraint(Metric.GMACS, min=1.0)]
    assert violation(constraints, {Metric.PARAMS_M: 2_000_000, Metric.GMACS: 1_000_000_000}) == 0
    assert violation(constraints, {Metric.PARAMS_M: 3_000_000, Metric.GMACS: 500_000_000}) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("document", "pointer", "text"),
    [
        ({"metric": "flops", "max": 5}, "/metric", "one of params_m, gmacs"),
        ({"metric": 3, "max": 5}, "/metric", "found 3"),
        ({"max": 5}, "/metric", "required"),
        ({"metric": "params_m"}, "/max", "min, max or both"),
        ({"metric": "params_m", "max": -1}, "/max", "a number from 0"),
        ({"metric": "params_m", "max": "6"}, "/max", "found '6'"),
        ({"metric": "params_m", "max": True}, "/max", "found True"),
        ({"metric": "params_m", "max": float("nan")}, "/max", "found nan"),
        ({"metric": "params_m", "min": 10**400}, "/min", "to 1e+12"),
        ({"metric": "params_m", "min": 3, "max": 2}, "/max", "at least min, which is 3"),
        ({"metric": "params_m", "max": 2, "maximum/": 3}, "/maximum~1", "one of metric, min, max"),
    ],
)
def test_bad_constraints_are_refused_by_field(document: dict[str, Any], pointer: str, text: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        Constraint.from_json(document)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert text in str(problem)


def test_json_round_trip() -> None:
    constraint = Constraint(Metric.GMACS, max=2)
    assert constraint.to_json() == {"metric": "gmacs", "max": 2.0}
    assert Constraint.from_json(constraint.to_json()) == constraint
