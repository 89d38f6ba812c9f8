"""What the generations of a search have brought: its hypervolume, and what the algorithm says of each one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from search.asktell import Candidate, SearchAlgorithm
from search.hypervolume import hypervolume, objective_values, reference_point
from search.pareto import Goal, Objective
from search.trace import Trace
from workers.stages.context import Json
from workers.stages.search_context import SearchContext


class GenerationRecord:
    """Reports each told generation of a search, and keeps their figures for the result.

    Args:
        ctx: of the search.
    """

    def __init__(self, ctx: SearchContext) -> None:
        self._ctx = ctx
        self._objectives = objectives_of(ctx)
        self._trace = Trace()
        self._reference: dict[str, float] | None = None

    def add(self, search: SearchAlgorithm, front: Sequence[int]) -> None:
        """Take notice of the generation that was told last; ``front`` is that of all candidates."""
        self._refer_to(search)
        generation = search.candidates[-1].proposal.generation
        dominated = self.hypervolume([search.candidates[n] for n in front])
        figures = {**({} if dominated is None else {"hypervolume": dominated}), **search.figures}
        self._trace.add(generation, figures)
        if figures:
            self._ctx.metric(generation, figures)

    def hypervolume(self, candidates: Sequence[Candidate]) -> float | None:
        """Of these candidates, from this search's reference point; None while that is unknown."""
        if self._reference is None:
            return None
        points = [objective_values(self._objectives, c.score, self._costs(c)) for c in candidates]
        goals = [objective.goal for objective in self._objectives]
        return hypervolume(points, goals, [self._reference[o.metric] for o in self._objectives])

    def outputs(self) -> Json:
        """``reference``: the point by objective; ``rows``: figures of (some) generations."""
        return {"reference": self._reference, "rows": self._trace.rows}

    def state(self) -> Json:
        """What :meth:`restore` needs; bounded."""
        return self._trace.state()

    def restore(self, state: Json, search: SearchAlgorithm) -> None:
        """Go on from a state; the search is there already."""
        self._trace.restore(state)
        self._refer_to(search)

    def _refer_to(self, search: SearchAlgorithm) -> None:
        if self._reference is None:
            first = takewhile(lambda c: c.proposal.generation == 0, search.candidates)
            self._reference = reference_point(
                self._objectives, self._ctx.space, len(self._ctx.classes), (c.score for c in first), self._ctx.table
            )

    def _costs(self, candidate: Candidate) -> dict[str, float]:
        return self._ctx.costs(self._ctx.space.decode(candidate.proposal.genotype))


def objectives_of(ctx: SearchContext) -> tuple[Objective, ...]:
    """The axes of the job's front."""
    return tuple(Objective(o.metric.value, Goal(o.goal)) for o in ctx.spec.objectives)
