from __future__ import annotations

import json

import numpy as np
import pytest

from models.architecture import Genotype
from search.asktell import SearchAlgorithm
from search.constraints import feasible_set
from search.evolution import EvolutionSearch, EvolutionSettings
from search.predictor import FEWEST_SCORES, Features, PredictorSearch, Ridge
from search.presets import resolve

SPACE = resolve("micro")
SETTINGS = EvolutionSettings(population=20, generations=5, parents=5)


def additive(genotype: Genotype) -> float:
    """A score that a linear model of the genes can learn."""
    depth = int(genotype[0])
    heads = sum((i + 1) * head for i, head in enumerate(genotype[1 + depth : -1]))
    return float(heads - 2 * sum(genotype[1 : 1 + depth]) - abs(genotype[-1] - 64) / 4)


def predictor(seed: int = 0, prescreen: int = 10) -> PredictorSearch:
    return PredictorSearch(feasible_set(SPACE, [], 0), SETTINGS, np.random.default_rng(seed), prescreen=prescreen)


def run(search: SearchAlgorithm) -> float:
    while proposals := search.ask():
        search.tell([additive(proposal.genotype) for proposal in proposals])
    best = search.best(1)[0].score
    assert best is not None
    return best


def test_ridge_learns_what_is_linear() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(60, 5)), np.array([1.0, -2.0, 0.0, 3.0, 0.5])
    ridge = Ridge(5)
    for part in np.split(np.arange(60), 3):
        ridge.add(rows[part], rows[part] @ weights + 7)
    assert ridge.fit()(rows) == pytest.approx(rows @ weights + 7, abs=0.01)


def test_ridge_predicts_the_mean_of_what_is_noise() -> None:
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(40, 30)), rng.normal(size=40) + 5
    ridge = Ridge(30)
    ridge.add(rows, targets)
    fresh = ridge.fit()(rng.normal(size=(500, 30)))
    assert np.std(fresh) < 0.7
    assert np.mean(fresh) == pytest.approx(5, abs=0.5)


def test_ridge_needs_two_rows() -> None:
    ridge = Ridge(1)
    ridge.add(np.ones((1, 1)), np.ones(1))
    with pytest.raises(ValueError, match="found 1 rows, allowed is at least 2"):
        ridge.fit()


def test_features_tell_all_members_apart() -> None:
    rng = np.random.default_rng(0)
    genotypes = list({SPACE.sample(rng).genotype for _ in range(300)})
    rows = Features(feasible_set(SPACE, [], 0)).of(genotypes)
    assert len(np.unique(rows, axis=0)) == len(genotypes)
    assert rows.min() >= 0
    assert rows.max() <= 1


def test_screened_evolution_finds_better_ones_than_plain_evolution() -> None:
    plain = [
        run(EvolutionSearch(feasible_set(SPACE, [], 0), SETTINGS, np.random.default_rng(seed))) for seed in range(3)
    ]
    assert np.mean([run(predictor(seed)) for seed in range(3)]) > np.mean(plain)


def test_the_error_of_each_generation_is_told_from_predictions_made_before_it() -> None:
    search = predictor()
    told = []
    while proposals := search.ask():
        search.tell([additive(proposal.genotype) for proposal in proposals])
        told.append(dict(search.figures))
    assert told[0] == {}
    assert [figures["predictor_scores"] for figures in told[1:]] == [20 * i for i in range(1, 6)]
    assert told[-1]["predictor_mae"] < 0.5 * told[-1]["predictor_mae_of_mean"]
    assert told[-1]["predictor_spearman"] > 0.5


def test_wrong_predictions_show_in_the_error() -> None:
    search, rng = predictor(), np.random.default_rng(1)
    while proposals := search.ask():
        search.tell(list(rng.normal(size=len(proposals))))
    assert search.figures["predictor_mae"] > 0.8 * search.figures["predictor_mae_of_mean"]


def test_few_scores_screen_nothing() -> None:
    search, plain = (
        predictor(),
        EvolutionSearch(feasible_set(SPACE, [], 0), SETTINGS, np.random.default_rng(0)),
    )
    for algorithm in (search, plain):
        algorithm.ask()
        algorithm.tell([1.0] * (FEWEST_SCORES - 1) + [None] * (20 - FEWEST_SCORES + 1))
    assert [p.genotype for p in search.ask()] == [p.genotype for p in plain.ask()]


def test_children_that_were_screened_out_may_be_proposed_later() -> None:
    search = predictor(prescreen=20)
    while proposals := search.ask():
        search.tell([additive(proposal.genotype) for proposal in proposals])
    assert len(search._proposed) == len(search.candidates)


def test_predictions_go_on_after_a_restart_in_the_middle_of_a_generation() -> None:
    undisturbed, interrupted = predictor(), predictor()
    run(undisturbed)
    for _ in range(3):
        interrupted.tell([additive(proposal.genotype) for proposal in interrupted.ask()])
    interrupted.ask()
    resumed = predictor(seed=5)
    resumed.restore(json.loads(json.dumps(interrupted.state())), interrupted.history())
    assert resumed.figures == interrupted.figures
    run(resumed)
    assert resumed.history() == undisturbed.history()
    assert resumed.figures == undisturbed.figures
