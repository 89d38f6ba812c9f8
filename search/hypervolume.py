"""Hypervolume: how much of the space of objectives a front dominates, as one number (Zitzler and Thiele 1999).

It grows whenever a front gets better anywhere, so that two searches, or two generations of one, can be compared. It
means something only together with its reference point, which therefore is stated beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search.constraints import reachable_range
from search.latency import LatencyTable
from search.metrics import Metric
from search.pareto import SCORE, Goal, Objective, pareto_front
from search.space import Space


def hypervolume(points: ArrayLike, goals: Sequence[Goal], reference: Sequence[float]) -> float:
    """Volume between the points and the reference, in the product of the objectives' units.

    Args:
        points: (n, k) objective values; rows with NaN were not measured. What is in one objective no better than the
            reference dominates nothing.
        goals: k directions, at least two.
        reference: k values that are worse than all of interest.

    Raises:
        ValueError: when the shapes do not fit, or a reference is no finite number.
    """
    worst = np.asarray(reference, dtype=np.float64)
    if len(goals) < 2 or worst.shape != (len(goals),) or not np.isfinite(worst).all():
        raise ValueError(
            f"reference: found {list(reference)}, allowed is one finite number for each of {len(goals)} goals, of "
            "which there are at least two"
        )
    values = np.asarray(points, dtype=np.float64).reshape(-1, len(goals))
    signs = np.array([1.0 if Goal(goal) is Goal.MAX else -1.0 for goal in goals])
    gains = (values - worst) * signs  # how far a point is better than the reference, along each axis
    gains = gains[(gains > 0).all(axis=1)]
    if not len(gains):
        return 0.0
    return _area(gains) if len(goals) == 2 else _volume(gains)


def _area(gains: NDArray[np.float64]) -> float:
    """Two objectives, the usual case: steps between sorted points."""
    front = gains[pareto_front(gains, [Goal.MAX, Goal.MAX])]  # the first axis descends, the second ascends
    steps = front[:, 0] - np.append(front[1:, 0], 0.0)
    return float((steps * front[:, 1]).sum())


def _volume(gains: NDArray[np.float64]) -> float:
    # Imported where it is needed: searches over two objectives, and the API, need not wait for it.
    from pymoo.indicators.hv import HV

    return float(HV(ref_point=np.zeros(gains.shape[1])).do(-gains))


def reference_point(
    objectives: Sequence[Objective],
    space: Space,
    num_classes: int,
    first_scores: Iterable[float | None],
    table: LatencyTable | None = None,
) -> dict[str, float] | None:
    """The point that the hypervolume of a search is measured from, by objective.

    Of a cost it is the worst that a member of the space can have, of the score the worst of the first generation, so
    that it is known before anything is bred and never moves. None when nothing of that generation has a score.
    """
    known = [score for score in first_scores if score is not None]
    if not known:
        return None
    point: dict[str, float] = {}
    for objective in objectives:
        if objective.metric == SCORE:
            low, high = min(known), max(known)
        else:
            reach = reachable_range(space, Metric(objective.metric), num_classes, table)
            low, high = reach.min, reach.max
        point[objective.metric] = low if objective.goal is Goal.MAX else high
    return point


def objective_values(
    objectives: Sequence[Objective], score: float | None, costs: Mapping[str, float]
) -> tuple[float, ...]:
    """A candidate as a point; NaN where it has no score."""
    told = float("nan") if score is None else score
    return tuple(told if objective.metric == SCORE else costs[objective.metric] for objective in objectives)
