from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from models.architecture import Genotype
from search.asktell import StateError
from search.constraints import feasible_set
from search.evolution import EvolutionSettings
from search.metrics import Metric
from search.nsga2 import Nsga2Search
from search.pareto import Goal, Objective, pareto_front
from search.space import Space

SCORE, PARAMS, GMACS = (
    Objective("score", Goal.MAX),
    Objective("params_m", Goal.MIN),
    Objective("gmacs", Goal.MIN),
)
SPACE = Space(
    name="toy",
    embed_dim=(16, 32, 48),
    depth=(1, 2, 3),
    num_heads=(1, 2),
    mlp_ratio=(1.0, 2.0),
    head_dim=16,
    img_size=32,
    patch_size=8,
)


def search(*objectives: Objective, population: int = 20, generations: int = 10, seed: int = 0) -> Nsga2Search:
    settings = EvolutionSettings(population=population, generations=generations)
    return Nsga2Search(feasible_set(SPACE, [], 0), settings, objectives, np.random.default_rng(seed))


def score(genotype: Genotype) -> float:
    """Wider is better, and so are many heads in the last block; other genes cost without any use."""
    return float(genotype[-1] + 4 * genotype[-2])


def run(nsga2: Nsga2Search) -> None:
    while proposals := nsga2.ask():
        nsga2.tell([score(proposal.genotype) for proposal in proposals])


def points(genotypes: list[Genotype]) -> list[tuple[float, int]]:
    return [(score(genotype), Metric.PARAMS_M.count_of(SPACE.decode(genotype))) for genotype in genotypes]


def test_it_finds_the_front_of_a_small_space_among_a_third_of_its_members() -> None:
    members = [arch.genotype for arch in SPACE.members()]
    assert len(members) == 252
    goals = [Goal.MAX, Goal.MIN]
    truth = points(members)
    whole = {truth[i] for i in pareto_front(truth, goals)}
    nsga2 = search(SCORE, PARAMS, population=12, generations=6)
    run(nsga2)
    found = points([candidate.proposal.genotype for candidate in nsga2.candidates])
    assert len(found) == 84
    assert {found[i] for i in pareto_front(found, goals)} == whole


def test_parents_are_on_better_fronts_than_those_who_die() -> None:
    nsga2 = search(SCORE, PARAMS, population=12, generations=3)
    run(nsga2)
    told = points([candidate.proposal.genotype for candidate in nsga2.candidates])
    survivors = set(nsga2.state()["survivors"])
    front = {int(i) for i in pareto_front(told, [Goal.MAX, Goal.MIN])}
    assert len(survivors) == 12
    assert front <= survivors


def test_three_objectives_are_sorted_alike() -> None:
    nsga2 = search(SCORE, PARAMS, GMACS)
    run(nsga2)
    assert len(nsga2.candidates) == 220


def test_measured_limits_go_before_objectives() -> None:
    nsga2 = search(SCORE, PARAMS, population=4, generations=2)
    nsga2.ask()
    nsga2.tell([1.0, 2.0, 3.0, 4.0], [0.5, 0.1, 0.0, 0.3])
    assert nsga2.state()["survivors"] == [2, 1, 3, 0]


def test_candidates_without_score_do_not_survive() -> None:
    nsga2 = search(SCORE, PARAMS, population=4, generations=2)
    nsga2.ask()
    nsga2.tell([None, None, None, None])
    assert nsga2.state()["survivors"] == []
    assert len(nsga2.ask()) == 4


def test_a_state_for_other_objectives_is_refused() -> None:
    with pytest.raises(StateError, match="objectives"):
        search(SCORE, GMACS).restore(search(SCORE, PARAMS).state(), [])


def test_searches_are_described_without_pymoo() -> None:
    code = "import sys, service.jobs.resolve, search.factory; sys.exit('pymoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
