"""The contract of ask and tell, for every algorithm."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.architecture import Genotype
from search.asktell import Candidate, Proposal, SearchAlgorithm, StateError, StopReason
from search.constraints import Constraint, feasible_set
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.metrics import Metric
from search.pareto import Goal, Objective
from search.presets import resolve
from tests.unit.search.latency_tables import table_for
from tests.unit.search.spaces import small_space, twelve_members

SETTINGS = EvolutionSettings(population=8, generations=4, parents=3)
every_algorithm = pytest.mark.parametrize("name", [name for name in AlgorithmName if name is not AlgorithmName.LISTED])


def build(name: AlgorithmName, seed: int = 0, **changes: Any) -> SearchAlgorithm:
    arguments: dict[str, Any] = {
        "space": resolve("micro"),
        "constraints": [Constraint(Metric.PARAMS_M, max=0.3)],
        "num_classes": 10,
        "settings": SETTINGS,
        "rng": np.random.default_rng(seed),
        "objectives": [Objective("score", Goal.MAX), Objective("gmacs", Goal.MIN)],
    }
    return make_search(name, **{**arguments, **changes})


def score(genotype: Genotype) -> float:
    """Any fixed function of the genes with an optimum inside the space."""
    return -sum(abs(gene - 3) * (1 + 0.1 * i) for i, gene in enumerate(genotype[:-1])) - abs(genotype[-1] - 64) / 16


def generations(search: SearchAlgorithm) -> list[tuple[Proposal, ...]]:
    """Run a search to its end."""
    asked = []
    while search.finished is None:
        asked.append(search.ask())
        search.tell([score(proposal.genotype) for proposal in asked[-1]])
    return asked


@every_algorithm
def test_all_generations_are_full_unique_feasible_and_numbered(name: AlgorithmName) -> None:
    search = build(name)
    asked = generations(search)
    assert search.finished is StopReason.GENERATIONS
    assert [len(proposals) for proposals in asked] == [8] * 5
    proposals = [proposal for generation in asked for proposal in generation]
    assert [proposal.n for proposal in proposals] == list(range(40))
    assert [proposal.generation for proposal in proposals] == [i for i in range(5) for _ in range(8)]
    assert len({proposal.genotype for proposal in proposals}) == 40
    space = resolve("micro")
    for proposal in proposals:
        assert Metric.PARAMS_M.count_of(space.decode(proposal.genotype, 10)) <= 300_000
        assert all(parent < proposal.n for parent in proposal.parents)
    assert search.ask() == ()


@every_algorithm
@pytest.mark.parametrize("told", [0, 2, 5])
def test_a_search_that_is_extended_goes_on_as_if_asked_for_more_at_first(name: AlgorithmName, told: int) -> None:
    longer = replace(SETTINGS, generations=7)
    expected = generations(build(name, settings=longer, max_evaluations=64))
    search = build(name, max_evaluations=40)
    for proposals in expected[:told]:
        assert search.ask() == proposals
        search.tell([score(proposal.genotype) for proposal in proposals])
    search.ask()
    extended = build(name, seed=1, settings=longer, max_evaluations=64)
    extended.restore(json.loads(json.dumps(search.state())), search.history())
    assert generations(extended) == expected[told:]


@every_algorithm
def test_ask_repeats_the_generation_until_it_is_told(name: AlgorithmName) -> None:
    search = build(name)
    first = search.ask()
    assert search.ask() == first
    search.tell([0.0] * 8)
    assert set(search.ask()).isdisjoint(first)


@every_algorithm
def test_the_number_of_evaluations_is_a_hard_limit(name: AlgorithmName) -> None:
    search = build(name, max_evaluations=21)
    asked = generations(search)
    assert search.finished is StopReason.MAX_EVALUATIONS
    assert [len(proposals) for proposals in asked] == [8, 8, 5]


@every_algorithm
@pytest.mark.parametrize("population", [1, 5, 50])
def test_a_space_of_twelve_is_exhausted_after_twelve(name: AlgorithmName, population: int) -> None:
    settings = EvolutionSettings(population=population, generations=100)
    search = build(name, space=twelve_members(), constraints=[], settings=settings, max_evaluations=100)
    generations(search)
    assert search.finished is StopReason.SPACE_EXHAUSTED
    assert {c.proposal.genotype for c in search.candidates} == {a.genotype for a in twelve_members().members()}
    assert len(search.candidates) == 12


@every_algorithm
def test_exhaustion_counts_only_members_within_the_limits(name: AlgorithmName) -> None:
    space = small_space()
    constraints = [Constraint(Metric.PARAMS_M, max=Metric.PARAMS_M.count_of(space.centre()) / 1e6)]
    members = feasible_set(space, constraints, 0).count
    assert 1 < members < space.size()
    settings = EvolutionSettings(population=7, generations=1000)
    search = build(name, space=space, constraints=constraints, settings=settings, num_classes=0)
    generations(search)
    assert search.finished is StopReason.SPACE_EXHAUSTED
    assert len({c.proposal.genotype for c in search.candidates}) == members


@every_algorithm
def test_limits_that_nobody_meets_end_the_search_with_the_nearest_misses(name: AlgorithmName) -> None:
    search = build(name, constraints=[Constraint(Metric.PARAMS_M, max=0.01)])
    assert search.finished is StopReason.NO_FEASIBLE
    assert search.ask() == ()
    (miss,) = search.nearest_misses(1)
    assert miss.genotype == resolve("micro").smallest().genotype
    assert miss.violation > 0


@every_algorithm
def test_scores_must_fit_what_was_asked(name: AlgorithmName) -> None:
    search = build(name)
    with pytest.raises(ValueError, match="found 0, allowed is one for each of 0"):
        search.tell([])
    with pytest.raises(ValueError, match="found 1, allowed is one for each of 0"):
        search.tell([1.0])
    search.ask()
    with pytest.raises(ValueError, match="found 7, allowed is one for each of 8"):
        search.tell([1.0] * 7)
    search.tell([1.0] * 8)


@every_algorithm
def test_best_ranks_by_score_then_by_age_and_leaves_out_what_has_no_score(name: AlgorithmName) -> None:
    search = build(name)
    search.ask()
    search.tell([0.5, None, 0.9, float("nan"), 0.5, float("inf"), 0.9, 0.1])
    assert [c.proposal.n for c in search.best(10)] == [2, 6, 0, 4, 7]
    assert [c.score for c in search.candidates] == [0.5, None, 0.9, None, 0.5, None, 0.9, 0.1]
    assert len(search.best(2)) == 2


@every_algorithm
def test_a_search_without_any_score_still_ends(name: AlgorithmName) -> None:
    search = build(name)
    while search.finished is None:
        search.tell([None] * len(search.ask()))
    assert search.best(1) == ()


@every_algorithm
def test_the_same_seed_gives_the_same_sequence_and_another_seed_another(name: AlgorithmName) -> None:
    assert generations(build(name, seed=3)) == generations(build(name, seed=3))
    assert generations(build(name, seed=3)) != generations(build(name, seed=4))


def through_json(state: Any) -> Any:
    # As the strictest reader might: no 64-bit overflow and no difference between 4.0 and 4.
    def shorten(value: Any) -> Any:
        match value:
            case dict():
                return {key: shorten(item) for key, item in value.items()}
            case list():
                return [shorten(item) for item in value]
            case float() if value.is_integer():
                return int(value)
            case int():
                assert abs(value) < 2**53
        return value

    return shorten(json.loads(json.dumps(state, allow_nan=False)))


@every_algorithm
@settings(max_examples=12)
@given(stop=st.integers(0, 5), asked=st.booleans(), seed=st.integers(0, 100))
def test_a_restored_search_continues_identically(name: AlgorithmName, stop: int, asked: bool, seed: int) -> None:
    undisturbed = build(name, seed=seed)
    generations(undisturbed)
    interrupted = build(name, seed=seed)
    for _ in range(stop):
        interrupted.tell([score(proposal.genotype) for proposal in interrupted.ask()])
    if asked:
        interrupted.ask()
    resumed = build(name, seed=seed + 1)  # the seed is in the state
    resumed.restore(through_json(interrupted.state()), through_json(interrupted.history()))
    generations(resumed)
    assert resumed.candidates == undisturbed.candidates
    assert resumed.best(5) == undisturbed.best(5)
    assert resumed.state() == undisturbed.state()


@every_algorithm
def test_a_finished_search_can_be_extended(name: AlgorithmName) -> None:
    short, long = build(name, max_evaluations=16), build(name)
    generations(short)
    assert short.finished is StopReason.MAX_EVALUATIONS
    extended = build(name)
    extended.restore(short.state(), short.history())
    assert generations(extended)
    generations(long)
    assert extended.candidates == long.candidates


@every_algorithm
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"space": twelve_members()}, "space"),
        ({"constraints": []}, "limits"),
        ({"num_classes": 3}, "num_classes"),
    ],
)
def test_a_state_of_another_search_is_refused(name: AlgorithmName, changes: dict[str, Any], text: str) -> None:
    state = build(name).state()
    with pytest.raises(StateError, match=f"search state, {text}: found"):
        build(name, **changes).restore(state, [])


def test_a_state_of_another_algorithm_or_version_is_refused() -> None:
    state = build(AlgorithmName.RANDOM).state()
    with pytest.raises(StateError, match="algorithm: found 'random', this search has 'evolution'"):
        build(AlgorithmName.EVOLUTION).restore(state, [])
    with pytest.raises(StateError, match="version"):
        build(AlgorithmName.RANDOM).restore({**state, "version": 1}, [])


def test_a_state_under_the_latency_of_another_device_is_refused() -> None:
    table = table_for(resolve("micro"), 10)
    slower = replace(table, fixed_ns={width: ns + 1 for width, ns in table.fixed_ns.items()})
    limits = [Constraint(Metric.LATENCY_MS, max=1.0)]
    state = build(AlgorithmName.RANDOM, constraints=limits, table=table).state()
    build(AlgorithmName.RANDOM, constraints=limits, table=table).restore(state, [])
    with pytest.raises(StateError, match="search state, latency_table: found"):
        build(AlgorithmName.RANDOM, constraints=limits, table=slower).restore(state, [])


@every_algorithm
def test_a_search_within_a_narrow_window_of_latency_proposes_nothing_else(name: AlgorithmName) -> None:
    space = resolve("micro")
    table = table_for(space, 10, joint=True)
    middle = table.predict_ns(space.centre(10)) / 1e6
    limits = [Constraint(Metric.LATENCY_MS, min=middle, max=middle * 1.001)]
    search = build(name, constraints=limits, table=table)
    latencies = [table.predict_ns(space.decode(p.genotype, 10)) / 1e6 for asked in generations(search) for p in asked]
    assert latencies
    assert all(middle <= latency <= middle * 1.001 for latency in latencies)


def test_unknown_algorithms_are_refused() -> None:
    with pytest.raises(ValueError, match="annealing"):
        build("annealing")  # type: ignore[arg-type]  # on purpose


def test_candidates_keep_their_proposals() -> None:
    search = build(AlgorithmName.RANDOM)
    asked = search.ask()
    search.tell([float(i) for i in range(8)])
    assert list(search.candidates) == [Candidate(proposal, float(i)) for i, proposal in enumerate(asked)]


def test_a_history_of_another_moment_is_refused() -> None:
    search = build(AlgorithmName.RANDOM)
    search.ask()
    search.tell([0.0] * 8)
    with pytest.raises(StateError, match="told: found 8, this search has 7"):
        build(AlgorithmName.RANDOM).restore(search.state(), search.history()[:-1])


@every_algorithm
def test_a_state_does_not_grow_and_the_history_only_gets_longer(name: AlgorithmName) -> None:
    search = build(name)
    search.tell([score(proposal.genotype) for proposal in search.ask()])
    first, early = len(json.dumps(search.state())), search.history()
    generations(search)
    assert len(json.dumps(search.state())) < first + 200
    assert search.history()[: len(early)] == early
    assert search.history(len(early)) == search.history()[len(early) :]


@every_algorithm
def test_seeds_end_the_first_generation_unless_they_break_a_limit(name: AlgorithmName) -> None:
    space = resolve("micro")
    beyond, within = space.largest().genotype, space.smallest().genotype
    other = build(name, seed=9).ask()[0].genotype
    search = build(name, seeds=[beyond, within, other, within])
    first = [proposal.genotype for proposal in search.ask()]
    assert first[-2:] == [within, other]
    assert search.random_first == 6
    assert first[:6] == [proposal.genotype for proposal in build(name).ask()][:6]
    resumed = build(name)
    resumed.restore(through_json(search.state()), [])
    assert (resumed.ask(), resumed.random_first) == (search.ask(), 6)


@every_algorithm
def test_violations_take_the_score_away(name: AlgorithmName) -> None:
    search = build(name)
    search.ask()
    search.tell([1.0] * 8, [0.0, 0.5, *[0.0] * 6])
    assert [c.score for c in search.candidates] == [1.0, None, *[1.0] * 6]
    assert search.candidates[1].violation == 0.5
    search.ask()
    with pytest.raises(ValueError, match="violations: found 2, allowed is one for each of 8"):
        search.tell([1.0] * 8, [0.0, 0.0])
    with pytest.raises(ValueError, match="violations: found -1"):
        search.tell([1.0] * 8, [-1.0] * 8)


def test_a_search_outside_of_measured_limits_breeds_from_the_nearest() -> None:
    search = build(AlgorithmName.EVOLUTION, settings=EvolutionSettings(population=8, generations=4, parents=2))
    search.ask()
    search.tell([1.0] * 8, [0.9, 0.2, 0.7, 0.9, 0.1, 0.9, 0.9, 0.9])
    assert {n for proposal in search.ask() for n in proposal.parents} == {1, 4}
    resumed = build(AlgorithmName.EVOLUTION, settings=EvolutionSettings(population=8, generations=4, parents=2))
    resumed.restore(search.state(), through_json(search.history()))
    search.tell([None] * 8)
    resumed.tell([None] * 8)
    assert resumed.ask() == search.ask()
