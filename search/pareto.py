"""The Pareto front: candidates that no other one beats in every objective at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Goal(StrEnum):
    """Which way an objective improves."""

    MIN = "min"
    MAX = "max"


SCORE = "score"
"""Name of the objective that is told; all others are costs."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One axis of the front.

    Attributes:
        metric: :data:`SCORE`, or a :class:`search.metrics.Metric`.
        goal: which way it improves.
    """

    metric: str
    goal: Goal


def pareto_front(points: ArrayLike, goals: Sequence[Goal], feasible: ArrayLike | None = None) -> NDArray[np.intp]:
    """Indices of the points that are not dominated.

    A point dominates another when it is at least as good in every objective and better in one; points that are equal
    in all objectives do not dominate each other, so either all or none of them are on the front.  The time is
    proportional to the number of points times the size of the front.

    Args:
        points: (n, k) objective values; a row with NaN was not measured and is left out.
        goals: k directions.
        feasible: (n,) booleans; infeasible points are neither on the front nor do they dominate.

    Returns:
        The indices in the order of the first objective, best first; then of the next ones, then by index.

    Raises:
        ValueError: when the shapes do not fit.
    """
    values = np.asarray(points, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(goals) or not goals:
        raise ValueError(f"points: found shape {values.shape}, allowed is (n, {max(1, len(goals))}), a column per goal")
    allowed = np.ones(len(values), dtype=bool) if feasible is None else np.asarray(feasible, dtype=bool)
    if allowed.shape != (len(values),):
        raise ValueError(f"feasible: found shape {allowed.shape}, allowed is ({len(values)},)")
    # Turn every objective into one to be minimised.
    losses = values * [1.0 if Goal(goal) is Goal.MIN else -1.0 for goal in goals]
    usable = np.flatnonzero(allowed & ~np.isnan(losses).any(axis=1))
    rows, row_of = np.unique(losses[usable], axis=0, return_inverse=True)
    front, left, columns = [], np.arange(len(rows)), rows.T.copy()
    # Rows are sorted, hence no later one dominates the first one left; it dominates those that are nowhere better.
    while left.size:
        front.append(left[0])
        better = np.logical_or.reduce([column < column[0] for column in columns])
        left, columns = left[better], columns[:, better]
    place = np.full(len(rows), -1)  # position along the front, -1 for dominated rows
    place[front] = np.arange(len(front))
    order = np.argsort(place[row_of], kind="stable")
    return usable[order[place[row_of[order]] >= 0]]


@dataclass(frozen=True, slots=True)
class FrontMove:
    """How a front has changed: the numbers of the points that joined it and of those that left it, ascending."""

    joined: tuple[int, ...]
    left: tuple[int, ...]


class GrowingFront:
    """The front of points that come in batches, without looking again at those that were beaten once.

    A beaten point stays beaten, so the front of all points is the front of the old front and the new points.  The time
    of a batch is proportional to (members + new points) times members.
    """

    def __init__(self, goals: Sequence[Goal]) -> None:
        self._goals = tuple(goals)
        self._numbers = np.empty(0, dtype=np.int64)  # ascending, so that equal points keep the order of their numbers
        self._points = np.empty((0, len(self._goals)))

    def add(self, first: int, points: ArrayLike, feasible: ArrayLike | None = None) -> FrontMove:
        """Take the points number ``first``, ``first + 1``, ...: all numbers so far must be below.

        Args:
            first: number of the first point.
            points: (n, k) objective values, as for :func:`pareto_front`.
            feasible: (n,) booleans, as there.

        Raises:
            ValueError: when the shapes do not fit, or a number is not new.
        """
        new = np.asarray(points, dtype=np.float64).reshape(-1, len(self._goals))
        if self._numbers.size and first <= self._numbers[-1]:
            raise ValueError(
                f"first: found {first}, allowed is above {self._numbers[-1]}, the last number on the front"
            )
        allowed = np.ones(len(new), dtype=bool) if feasible is None else np.asarray(feasible, dtype=bool)
        before = self._numbers
        numbers = np.concatenate([before, np.arange(first, first + len(new))])
        values = np.concatenate([self._points, new])
        kept = np.sort(pareto_front(values, self._goals, np.concatenate([np.ones(len(before), dtype=bool), allowed])))
        self._numbers, self._points = numbers[kept], values[kept]
        joined = self._numbers[self._numbers >= first]
        left = np.setdiff1d(before, self._numbers, assume_unique=True)
        return FrontMove(tuple(map(int, joined)), tuple(map(int, left)))

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the points on the front, in the order of :func:`pareto_front`."""
        return tuple(int(self._numbers[i]) for i in pareto_front(self._points, self._goals))
