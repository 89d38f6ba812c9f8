from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.constraints import Constraint, feasible_set
from search.errors import SettingsError
from search.evolution import EvolutionSearch, EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.metrics import Metric
from search.presets import resolve
from search.space import Space
from tests.unit.search.spaces import small_space
from tests.unit.search.test_asktell import generations, score

MICRO = resolve("micro")


def evolution(
    space: Space = MICRO, constraints: tuple[Constraint, ...] = (), seed: int = 0, **changes: Any
) -> EvolutionSearch:
    chosen = EvolutionSettings(**{"population": 20, "generations": 6, "parents": 5, **changes})
    return EvolutionSearch(feasible_set(space, constraints, 10), chosen, np.random.default_rng(seed))


depths = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)
probabilities = st.sampled_from([0.0, 0.3, 1.0])


@settings(max_examples=40)
@given(
    depth=depths,
    seed=st.integers(0, 2**32),
    block=probabilities,
    network=probabilities,
    mutation_share=st.sampled_from([0.0, 0.5, 1.0]),
    tight=st.booleans(),
)
def test_children_are_members_within_the_limits_whatever_the_depths_of_their_parents(
    depth: list[int], seed: int, block: float, network: float, mutation_share: float, tight: bool
) -> None:
    space = small_space(depth=depth)
    limit = Metric.PARAMS_M.count_of(space.centre(10))
    constraints = (Constraint(Metric.PARAMS_M, max=limit / 1e6),) if tight else ()
    search = evolution(
        space,
        constraints,
        seed,
        mutation_share=mutation_share,
        crossover_share=1 - mutation_share,
        block_mutation_prob=block,
        network_mutation_prob=network,
    )
    for proposal in [proposal for generation in generations(search) for proposal in generation]:
        arch = space.decode(proposal.genotype, 10)  # raises for anything that is not a member
        assert not tight or Metric.PARAMS_M.count_of(arch) <= limit


def test_shares_decide_how_a_generation_is_bred() -> None:
    search = evolution(mutation_share=0.5, crossover_share=0.3)
    bred = generations(search)[1]
    assert [len(proposal.parents) for proposal in bred] == [1] * 10 + [2] * 6 + [0] * 4


def test_only_the_best_candidates_so_far_become_parents() -> None:
    search = evolution()
    while search.finished is None:
        best = {candidate.proposal.n for candidate in search.best(5)}
        asked = search.ask()
        assert {parent for proposal in asked for parent in proposal.parents} <= best
        search.tell([score(proposal.genotype) for proposal in asked])


def test_crossover_takes_every_gene_from_a_parent() -> None:
    search = evolution(mutation_share=0.0, crossover_share=1.0, parents=20)
    genotypes = [proposal.genotype for generation in generations(search) for proposal in generation]
    crossed = [c.proposal for c in search.candidates if c.proposal.parents]
    assert len(crossed) > 50
    mixed_depths = 0
    for proposal in crossed:
        child, parents = MICRO.decode(proposal.genotype), [MICRO.decode(genotypes[n]) for n in proposal.parents]
        assert child.depth in {parent.depth for parent in parents}
        assert child.embed_dim in {parent.embed_dim for parent in parents}
        for i in range(child.depth):
            assert child.num_heads[i] in {parent.num_heads[i] for parent in parents if i < parent.depth}
            assert child.mlp_ratio[i] in {parent.mlp_ratio[i] for parent in parents if i < parent.depth}
        mixed_depths += len({parent.depth for parent in parents}) > 1
    assert mixed_depths


def test_mutation_with_certainty_zero_finds_no_children_and_is_filled_up() -> None:
    search = evolution(mutation_share=1.0, crossover_share=0.0, block_mutation_prob=0.0, network_mutation_prob=0.0)
    bred = generations(search)[1]
    assert len(bred) == 20
    assert all(proposal.parents == () for proposal in bred)


def test_mutation_keeps_most_genes_by_default() -> None:
    space = resolve("masktas-small")
    search = evolution(space, mutation_share=1.0, crossover_share=0.0, network_mutation_prob=0.0)
    generations(search)
    genotypes = [candidate.proposal.genotype for candidate in search.candidates]
    changed = []
    for candidate in search.candidates:
        for parent in candidate.proposal.parents:
            pairs = zip(candidate.proposal.genotype, genotypes[parent], strict=True)
            changed.append(np.mean([ours != theirs for ours, theirs in pairs]))
    # A redrawn gene differs with probability 2/3, so about 0.2 * 2/3 of them do.
    assert 0.09 < np.mean(changed) < 0.18


def test_evolution_beats_random_search_at_equal_evaluations() -> None:
    wins = 0
    for seed in range(10):
        best = {}
        for name in (AlgorithmName.EVOLUTION, AlgorithmName.RANDOM):
            search = make_search(
                name,
                space=resolve("masktas-small"),
                constraints=[Constraint(Metric.PARAMS_M, max=23)],
                num_classes=1000,
                settings=EvolutionSettings(population=20, generations=9, parents=5),
                rng=np.random.default_rng(seed),
            )
            generations(search)
            assert len(search.candidates) == 200
            best[name] = search.best(1)[0].score
        wins += best[AlgorithmName.EVOLUTION] > best[AlgorithmName.RANDOM]  # type: ignore[operator]  # all are scored
    assert wins == 10


@pytest.mark.parametrize(
    ("changes", "pointer", "text"),
    [
        ({"population": 0}, "/population", "at least 1"),
        ({"generations": -1}, "/generations", "at least 0"),
        ({"parents": 1.5}, "/parents", "found 1.5"),
        ({"mutation_share": 1.2}, "/mutation_share", "from 0 to 1"),
        ({"block_mutation_prob": float("nan")}, "/block_mutation_prob", "found nan"),
        ({"network_mutation_prob": True}, "/network_mutation_prob", "found True"),
        ({"mutation_share": 0.6}, "/crossover_share", "at most 0.4"),
    ],
)
def test_bad_settings_are_refused_by_field(changes: dict[str, Any], pointer: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        EvolutionSettings(**changes)
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert text in str(problem)
