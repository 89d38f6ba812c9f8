"""Search algorithms by name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import numpy as np

from models.architecture import Genotype
from search.asktell import SearchAlgorithm
from search.constraints import Constraint, feasible_set
from search.evolution import EvolutionSearch, EvolutionSettings
from search.latency import LatencyTable
from search.listed import ListedSearch
from search.nsga2 import Nsga2Search
from search.pareto import Objective
from search.predictor import PRESCREEN, PredictorSearch
from search.random_search import RandomSearch
from search.space import Space


class AlgorithmName(StrEnum):
    """The search algorithms."""

    EVOLUTION = "evolution"
    RANDOM = "random"
    NSGA2 = "nsga2"
    PREDICTOR = "predictor"
    LISTED = "listed"


def make_search(
    name: AlgorithmName,
    *,
    space: Space,
    constraints: Sequence[Constraint],
    num_classes: int,
    settings: EvolutionSettings,
    rng: np.random.Generator,
    max_evaluations: int | None = None,
    table: LatencyTable | None = None,
    listed: Sequence[Genotype] = (),
    seeds: Sequence[Genotype] = (),
    objectives: Sequence[Objective] = (),
    prescreen: int = PRESCREEN,
) -> SearchAlgorithm:
    """Build a search; to continue an earlier one, ``restore`` its state.

    Args:
        name: the algorithm.
        space: where to search.
        constraints: limits that every proposal meets.
        num_classes: outputs of the head that proposals are priced with.
        settings: of all that breed; random search takes its population and generations, so that with
            equal settings all score equally many candidates.
        rng: source of all randomness, PCG64 (``numpy.random.default_rng``).
        max_evaluations: at most this many candidates are proposed; the last generation is cut to fit. A list is
            always scored as a whole.
        table: that prices latency, when it is limited.
        listed: what ``listed`` scores; of no use to the others.
        seeds: members that the first generation ends with; of no use to ``listed``.
        objectives: the axes of the front that ``nsga2`` looks for; of no use to the others.
        prescreen: children that ``predictor`` breeds for each one that it proposes.

    Raises:
        ValueError: for an unknown name.
        SettingsError: a list that cannot be scored, see :class:`search.listed.ListedSearch`.
    """
    feasible = feasible_set(space, constraints, num_classes, table)
    match AlgorithmName(name):
        case AlgorithmName.EVOLUTION:
            return EvolutionSearch(feasible, settings, rng, max_evaluations, seeds)
        case AlgorithmName.NSGA2:
            return Nsga2Search(feasible, settings, objectives, rng, max_evaluations, seeds)
        case AlgorithmName.PREDICTOR:
            return PredictorSearch(feasible, settings, rng, max_evaluations, seeds, prescreen)
        case AlgorithmName.RANDOM:
            return RandomSearch(
                feasible,
                population=settings.population,
                generations=settings.generations,
                rng=rng,
                max_evaluations=max_evaluations,
                seeds=seeds,
            )
        case AlgorithmName.LISTED:
            return ListedSearch(feasible, listed, population=settings.population, rng=rng)
        case other:
            assert_never(other)
