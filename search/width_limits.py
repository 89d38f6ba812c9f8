"""Limits on the cost of the widths of a slimmable network: which meet them, and what can be said before training.

The widths are few, so they are priced one by one. Costs grow with the width: each limit leaves a run of widths, and
runs of which each two meet have a width in common, so that a conflict can always be told by pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from models.slimmable import Slimmable
from search.constraints import Constraint, ConstraintProblem, ConstraintProblemKind, ReachableRange
from search.metrics import FORMULA_METRICS, Metric


class WidthCosts:
    """Costs of the widths of a slimmable network.

    Args:
        net: the network, with the head that its widths are deployed with.
        head_dims: widths of a head that come into question, ascending.
    """

    def __init__(self, net: Slimmable, head_dims: Sequence[int]) -> None:
        archs = [net.architecture(head_dim) for head_dim in head_dims]
        self.head_dims = tuple(head_dims)
        self._counts = {metric: [metric.count_of(arch) for arch in archs] for metric in FORMULA_METRICS}

    def of(self, head_dim: int) -> dict[str, float]:
        """Costs of one width in the metrics' units, by metric name."""
        at = self.head_dims.index(head_dim)
        return {metric.value: counts[at] / metric.unit for metric, counts in self._counts.items()}

    def reachable(self, metric: Metric) -> ReachableRange:
        """What the widths cost at least and at most."""
        counts = self._counts[metric]
        return ReachableRange(metric, min(counts), max(counts))

    def within(self, constraints: Sequence[Constraint]) -> tuple[int, ...]:
        """The widths that meet all limits, ascending."""
        windows = [constraint.window for constraint in constraints]
        return tuple(
            head_dim
            for at, head_dim in enumerate(self.head_dims)
            if all(window.contains(self._counts[window.metric][at]) for window in windows)
        )

    def check(self, constraints: Sequence[Constraint]) -> tuple[ConstraintProblem, ...]:
        """Whether limits can be met, alone and together, and which are without effect.

        Without an error among the problems at least one width meets all limits.
        """
        problems = [problem for index, limit in enumerate(constraints) for problem in self._alone(index, limit)]
        if any(problem.is_error for problem in problems):
            return tuple(problems)
        return (*problems, *self._together(constraints))

    def _alone(self, index: int, limit: Constraint) -> Iterator[ConstraintProblem]:
        reach, window = self.reachable(limit.metric), limit.window
        scope = f"{limit.metric} of these widths reaches from {reach.min:.12g} to {reach.max:.12g}"
        if not self.within([limit]):
            detail = f"{limit}: no width lies within; {scope}"
            yield ConstraintProblem(ConstraintProblemKind.UNSATISFIABLE, (f"/{index}",), detail, (reach,))
            return
        idle = ConstraintProblemKind.NOT_BINDING
        if window.high is not None and window.high > reach.high:
            detail = f"max {limit.max:.12g}: above the whole network, so without effect; {scope}"
            yield ConstraintProblem(idle, (f"/{index}/max",), detail, (reach,))
        if window.low is not None and window.low < reach.low:
            detail = f"min {limit.min:.12g}: below the smallest width, so without effect; {scope}"
            yield ConstraintProblem(idle, (f"/{index}/min",), detail, (reach,))

    def _together(self, constraints: Sequence[Constraint]) -> Iterator[ConstraintProblem]:
        for (i, one), (j, other) in combinations(enumerate(constraints), 2):
            if not self.within([one, other]):
                ranges = tuple(self.reachable(limit.metric) for limit in (one, other))
                detail = f"{one} and {other}: no width meets these together"
                yield ConstraintProblem(ConstraintProblemKind.CONFLICT, (f"/{i}", f"/{j}"), detail, ranges)
