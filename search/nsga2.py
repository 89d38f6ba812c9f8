"""NSGA-II (Deb et al. 2002): a search for a whole front instead of one best candidate.

Survivors of a generation are the best of their parents and themselves, by the rank of the front they are on
(section III-A) and then by how lonely they are on it (section III-B); parents win binary tournaments by the same order.
Non-dominated sorting and crowding distance are pymoo's. Mutation and crossover are those of :mod:`search.evolution`,
since genotypes differ in length, and no member is ever proposed twice.

Limits on costs need no constrained domination, as nothing beyond them is ever proposed. Of limits that only a
measurement shows, section VI is followed: whoever keeps them goes before whoever breaks them, and of the latter
the nearest goes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from models.architecture import Genotype
from search.asktell import Candidate, Proposal
from search.evolution import EvolutionSearch, EvolutionSettings
from search.hypervolume import objective_values
from search.pareto import Goal, Objective
from search.sampling import FeasibleSet

Points = NDArray[np.float64]
"""(n, k) objectives, all to be minimised."""


class Nsga2Search(EvolutionSearch):
    """Evolution towards the front of two to four objectives.

    Args:
        feasible: members of the space within the limits.
        settings: as of the evolution; ``parents`` has no meaning, as all survivors may be bred from.
        objectives: axes of the front.
        rng: source of all randomness.
        max_evaluations: at most this many candidates are proposed.
        seeds: members that the first generation ends with.
    """

    name: ClassVar[str] = "nsga2"

    def __init__(
        self,
        feasible: FeasibleSet,
        settings: EvolutionSettings,
        objectives: Sequence[Objective],
        rng: np.random.Generator,
        max_evaluations: int | None = None,
        seeds: Sequence[Genotype] = (),
    ) -> None:
        super().__init__(feasible, settings, rng, max_evaluations, seeds)
        self._objectives = tuple(objectives)
        self._survivors: list[int] = []  # n, the best first

    def _mating_pool(self) -> list[Proposal]:
        return [self._candidates[n].proposal for n in self._survivors]

    def _draw_parents(self, pool: Sequence[Proposal], n_parents: int) -> list[Proposal]:
        """Winners of binary tournaments among different ones; the pool is sorted, so that the lower place wins."""
        drawn = self._rng.choice(len(pool), size=min(2 * n_parents, len(pool)), replace=False)
        return [pool[min(pair)] for pair in np.array_split(drawn, n_parents)]

    def _learn(self, told: Sequence[Candidate]) -> None:
        super()._learn(told)
        rivals = [self._candidates[n] for n in self._survivors]
        self._survivors = self._select([*rivals, *told])

    def _select(self, rivals: Sequence[Candidate]) -> list[int]:
        scored = [candidate for candidate in rivals if candidate.score is not None]
        order = _order(np.array([self._point(candidate) for candidate in scored]), self._settings.population)
        survivors = [scored[i].proposal.n for i in order]
        misses = sorted((c.violation, c.proposal.n) for c in rivals if c.score is None and c.violation)
        return survivors + [n for _, n in misses[: self._settings.population - len(survivors)]]

    def _point(self, candidate: Candidate) -> list[float]:
        """Costs as logarithms: ranks stay the same, and half the size counts as far at either end of the front."""
        counts = self._feasible.counts(candidate.proposal.genotype)
        costs = {metric.value: float(np.log(count)) for metric, count in counts.items()}
        values = objective_values(self._objectives, candidate.score, costs)
        return [
            value if objective.goal is Goal.MIN else -value
            for objective, value in zip(self._objectives, values, strict=True)
        ]

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "survivors": list(self._survivors)}

    def _own_restore(self, state: Mapping[str, Any]) -> None:
        super()._own_restore(state)
        self._survivors = list(state["survivors"])

    def _identity(self) -> dict[str, Any]:
        axes = [{"metric": objective.metric, "goal": objective.goal.value} for objective in self._objectives]
        return {**super()._identity(), "objectives": axes}


def _order(points: Points, survivors: int) -> list[int]:
    """Indices of the survivors, the best first: by front, then the lonely ones, then the earlier ones."""
    # Imported where it is needed: it takes as long as everything else of a search together, and the API needs none.
    from pymoo.operators.survival.rank_and_crowding.metrics import get_crowding_function
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    if not len(points):
        return []
    crowding = get_crowding_function("cd")
    chosen: list[int] = []
    for front in NonDominatedSorting().do(points, n_stop_if_ranked=survivors):
        front = np.sort(front)
        loneliness = crowding.do(points[front])
        chosen += [int(i) for i in front[np.argsort(-loneliness, kind="stable")]]
    return chosen[:survivors]
