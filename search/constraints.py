"""Limits on the cost of the deployed network: reading them, and saying before a search starts what they leave.

A limit is compared exactly: 5.9026 (million parameters) admits 5,902,600 parameters and not one more. Latency is
compared as a table predicts it (:mod:`search.latency`), in whole nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from models.architecture import FieldProblem, escape_pointer
from search.errors import ConstraintError
from search.latency import LatencyError, LatencyTable
from search.metrics import Metric, Window, priced_metrics
from search.metrics import violation as window_violation
from search.sampling import FeasibleSet
from search.space import Space

_KEYS = ("metric", "min", "max")
MAX_LIMIT = 1e12
"""Far beyond any network; keeps absurd integers out of floating point."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Inclusive limits on one metric, in its unit; at least one side is given.

    Raises:
        ConstraintError: pointers are relative to the constraint, such as ``/max``.
    """

    metric: Metric
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise ConstraintError(problems)
        object.__setattr__(self, "metric", Metric(self.metric))
        for side in ("min", "max"):
            value = getattr(self, side)
            object.__setattr__(self, side, None if value is None else float(value))

    @property
    def window(self) -> Window:
        """The limits as bounds on the exact count."""
        # Via the shortest decimal that names the float: what the user wrote, not its binary neighbour.
        low = None if self.min is None else math.ceil(Fraction(str(self.min)) * self.metric.unit)
        high = None if self.max is None else math.floor(Fraction(str(self.max)) * self.metric.unit)
        return Window(self.metric, low, high)

    def __str__(self) -> str:
        sides = [f"at least {_text(self.min)}"] if self.min is not None else []
        sides += [f"at most {_text(self.max)}"] if self.max is not None else []
        return f"{self.metric} {' and '.join(sides)}"

    def to_json(self) -> dict[str, Any]:
        """The constraint as a JSON object, open sides left out."""
        sides = {"min": self.min, "max": self.max}
        return {"metric": self.metric.value, **{key: value for key, value in sides.items() if value is not None}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Constraint:
        """Read a constraint, strictly.

        Raises:
            ConstraintError: for unknown keys, unknown metrics and values that are no limits.
        """
        problems = [
            FieldProblem(f"/{escape_pointer(str(key))}", key, f"one of {', '.join(_KEYS)}")
            for key in document
            if key not in _KEYS
        ]
        if "metric" not in document:
            problems.append(FieldProblem("/metric", None, "required"))
        if problems:
            raise ConstraintError(problems)
        return cls(**document)


def _problems(constraint: Constraint) -> Iterator[FieldProblem]:
    if constraint.metric not in tuple(Metric):
        yield FieldProblem("/metric", constraint.metric, f"one of {', '.join(Metric)}")
    sound = True
    for side in ("min", "max"):
        value = getattr(constraint, side)
        if value is not None and not _is_limit(value):
            sound = False
            yield FieldProblem(f"/{side}", value, f"a number from 0 to {MAX_LIMIT:g}")
    if constraint.min is None and constraint.max is None:
        yield FieldProblem("/max", None, "min, max or both")
    elif sound and constraint.min is not None and constraint.max is not None and constraint.min > constraint.max:
        yield FieldProblem("/max", constraint.max, f"at least min, which is {_text(constraint.min)}")


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_LIMIT


@dataclass(frozen=True, slots=True)
class ReachableRange:
    """Cost of the cheapest and of the dearest member of a space, as exact counts and in the metric's unit."""

    metric: Metric
    low: int
    high: int

    @property
    def min(self) -> float:
        """The least cost in the metric's unit."""
        return self.low / self.metric.unit

    @property
    def max(self) -> float:
        """The greatest cost in the metric's unit."""
        return self.high / self.metric.unit

    def to_json(self) -> dict[str, Any]:
        """``{"metric", "min", "max"}`` in the metric's unit."""
        return {"metric": self.metric.value, "min": self.min, "max": self.max}


def reachable_range(
    space: Space, metric: Metric, num_classes: int, table: LatencyTable | None = None
) -> ReachableRange:
    """What members of the space cost at least and at most, with a head of ``num_classes`` outputs.

    Exact: by formula costs grow with every gene, so the smallest and the largest member are the extremes. Times need
    not grow; there the extremes are found by width and depth.

    Raises:
        ValueError: for latency without a table.
        LatencyError: the table lacks entries for members of the space.
    """
    if metric is Metric.LATENCY_MS and table is not None:
        return ReachableRange(metric, *_latency_range(space, num_classes, table))
    return ReachableRange(
        metric, metric.count_of(space.smallest(num_classes)), metric.count_of(space.largest(num_classes))
    )


def reachable_ranges(space: Space, num_classes: int, table: LatencyTable | None = None) -> tuple[ReachableRange, ...]:
    """:func:`reachable_range` of every metric that has a price."""
    return tuple(reachable_range(space, metric, num_classes, table) for metric in priced_metrics(table))


def _latency_range(space: Space, num_classes: int, table: LatencyTable) -> tuple[int, int]:
    if gaps := table.gaps(space, num_classes):
        raise LatencyError(gaps)
    totals = []
    for width in space.embed_dim:
        blocks = [table.block_ns[width, heads, ratio] for heads in space.num_heads for ratio in space.mlp_ratio]
        for depth in space.depth:
            totals += [table.fixed_ns[width] + depth * block for block in (min(blocks), max(blocks))]
    return min(totals), max(totals)


def feasible_set(
    space: Space, constraints: Sequence[Constraint], num_classes: int, table: LatencyTable | None = None
) -> FeasibleSet:
    """The members of the space that meet all constraints, priced with a head of ``num_classes`` outputs.

    Raises:
        LatencyError, TooManyProfiles: see :class:`search.sampling.FeasibleSet`.
    """
    return _feasible_set(space, tuple(constraint.window for constraint in constraints), num_classes, table)


@lru_cache(maxsize=2)  # checking, previewing and forecasting a search ask for one set; some take a second to decide
def _feasible_set(
    space: Space, windows: tuple[Window, ...], num_classes: int, table: LatencyTable | None
) -> FeasibleSet:
    return FeasibleSet(space, windows, num_classes, table)


def violation(constraints: Sequence[Constraint], counts: Mapping[Metric, int]) -> float:
    """How far counts are outside the limits: relative excesses summed up, 0 exactly when all are met."""
    return window_violation([constraint.window for constraint in constraints], counts)


class ConstraintProblemKind(StrEnum):
    """What can be said about limits before a search starts."""

    UNSATISFIABLE = "unsatisfiable"  # no member meets this one constraint
    CONFLICT = "conflict"  # each can be met, but not these together
    NOT_BINDING = "not_binding"  # a side that no member breaks: a warning


@dataclass(frozen=True, slots=True)
class ConstraintProblem:
    """A finding about one or several constraints.

    Attributes:
        kind: what it is.
        pointers: JSON pointers into the list of constraints, such as ``/0/max``, or ``/0`` and ``/1`` for a conflict.
        detail: a sentence for the user that names the limits and what can be reached.
        reachable: range of each metric involved.
    """

    kind: ConstraintProblemKind
    pointers: tuple[str, ...]
    detail: str
    reachable: tuple[ReachableRange, ...]

    @property
    def is_error(self) -> bool:
        """True when no search can succeed under these limits."""
        return self.kind is not ConstraintProblemKind.NOT_BINDING


def check_constraints(
    space: Space, constraints: Sequence[Constraint], num_classes: int, table: LatencyTable | None = None
) -> tuple[ConstraintProblem, ...]:
    """Decide exactly whether limits can be met, alone and together, and point out those without effect.

    Without an error among the problems at least one member meets all limits.  A conflict names the two constraints
    that cannot hold together or, when each two can, all of them.

    Raises:
        LatencyError, TooManyProfiles: see :class:`search.sampling.FeasibleSet`.
    """
    problems: list[ConstraintProblem] = []
    for index, constraint in enumerate(constraints):
        reach = reachable_range(space, constraint.metric, num_classes, table)
        problems += _alone(space, constraint, index, reach, num_classes, table)
    if any(problem.is_error for problem in problems):
        return tuple(problems)
    return (*problems, *_together(space, constraints, num_classes, table))


def _alone(
    space: Space,
    constraint: Constraint,
    index: int,
    reach: ReachableRange,
    num_classes: int,
    table: LatencyTable | None,
) -> Iterator[ConstraintProblem]:
    window, metric = constraint.window, constraint.metric
    scope = f"{metric} of space {space.name!r} reaches from {_text(reach.min)} to {_text(reach.max)}"
    if window.high is not None and window.high < reach.low:
        detail = f"{constraint}: below the smallest architecture; {scope}"
        yield _problem(ConstraintProblemKind.UNSATISFIABLE, f"/{index}/max", detail, reach)
    elif window.low is not None and window.low > reach.high:
        detail = f"{constraint}: above the largest architecture; {scope}"
        yield _problem(ConstraintProblemKind.UNSATISFIABLE, f"/{index}/min", detail, reach)
    elif not (feasible := feasible_set(space, [constraint], num_classes, table)).count:
        nearest = " and ".join(_text(miss.counts[metric] / metric.unit) for miss in feasible.nearest(2))
        detail = f"{constraint}: no architecture lies in this window, the nearest have {nearest}; {scope}"
        yield _problem(ConstraintProblemKind.UNSATISFIABLE, f"/{index}", detail, reach)
    else:
        if window.high is not None and window.high > reach.high:
            side = Constraint(metric, max=constraint.max)
            detail = f"{side}: above the largest architecture, so without effect; {scope}"
            yield _problem(ConstraintProblemKind.NOT_BINDING, f"/{index}/max", detail, reach)
        if window.low is not None and window.low < reach.low:
            side = Constraint(metric, min=constraint.min)
            detail = f"{side}: below the smallest architecture, so without effect; {scope}"
            yield _problem(ConstraintProblemKind.NOT_BINDING, f"/{index}/min", detail, reach)


def _together(
    space: Space, constraints: Sequence[Constraint], num_classes: int, table: LatencyTable | None
) -> Iterator[ConstraintProblem]:
    """Conflicts among constraints that can each be met."""
    everything = feasible_set(space, constraints, num_classes, table)
    if everything.count:
        return
    pairs = False
    for i, j in combinations(range(len(constraints)), 2):
        pair = feasible_set(space, [constraints[i], constraints[j]], num_classes, table)
        if not pair.count:
            pairs = True
            yield _conflict(constraints, (i, j), pair)
    if not pairs:
        yield _conflict(constraints, tuple(range(len(constraints))), everything)


def _conflict(constraints: Sequence[Constraint], group: tuple[int, ...], empty: FeasibleSet) -> ConstraintProblem:
    members = [constraints[index] for index in group]
    metrics = sorted({member.metric for member in members})
    (nearest,) = empty.nearest(1)
    found = ", ".join(f"{metric} {_text(nearest.counts[metric] / metric.unit)}" for metric in metrics)
    detail = (
        f"{' and '.join(map(str, members))}: no architecture of space {empty.space.name!r} meets these together, "
        f"the nearest has {found}"
    )
    return ConstraintProblem(
        ConstraintProblemKind.CONFLICT,
        tuple(f"/{index}" for index in group),
        detail,
        tuple(reachable_range(empty.space, metric, empty.num_classes, empty.prices.table) for metric in metrics),
    )


def _problem(kind: ConstraintProblemKind, pointer: str, detail: str, reach: ReachableRange) -> ConstraintProblem:
    return ConstraintProblem(kind, (pointer,), detail, (reach,))


def _text(value: float) -> str:
    """Digits enough to tell neighbouring limits apart, and no more."""
    return f"{value:.12g}"
