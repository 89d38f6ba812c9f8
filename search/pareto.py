"""The Pareto front: candidates that no other one beats in every objective at once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Goal(StrEnum):
    """Which way an objective improves."""

    MIN = "min"
    MAX = "max"


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
