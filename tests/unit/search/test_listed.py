"""A list of architectures is scored as it stands."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from models.architecture import Genotype
from search.asktell import StateError, StopReason
from search.constraints import Constraint, feasible_set
from search.errors import SettingsError, SpaceError
from search.listed import ListedSearch
from search.metrics import Metric
from tests.unit.search.spaces import twelve_members

MEMBERS = [arch.genotype for arch in twelve_members().members()]
SMALLEST = twelve_members().smallest()


def build(
    genotypes: Sequence[Genotype], *, population: int = 2, constraints: Sequence[Constraint] = ()
) -> ListedSearch:
    feasible = feasible_set(twelve_members(), constraints, 0)
    return ListedSearch(feasible, genotypes, population=population, rng=np.random.default_rng(0))


def test_the_list_is_proposed_in_its_order_and_nothing_else() -> None:
    listed = [MEMBERS[i] for i in (7, 2, 11, 0, 5)]
    search = build(listed)
    asked = []
    while search.finished is None:
        asked.append([proposal.genotype for proposal in search.ask()])
        search.tell([float(len(asked))] * len(asked[-1]))
    assert asked == [listed[:2], listed[2:4], listed[4:]]
    assert search.finished is StopReason.LIST_DONE
    assert search.ask() == ()
    assert [c.proposal.n for c in search.best(2)] == [4, 2]


def test_the_whole_space_may_be_listed() -> None:
    search = build(MEMBERS, population=50)
    search.tell([0.0] * len(search.ask()))
    assert search.finished is StopReason.LIST_DONE
    assert len(search.candidates) == 12


def test_a_list_goes_on_where_its_state_was_saved() -> None:
    search = build(MEMBERS[:5])
    search.ask()
    search.tell([0.1, None])
    search.ask()
    again = build(MEMBERS[:5])
    again.restore(json.loads(json.dumps(search.state())), search.history())
    assert again.ask() == search.ask()
    assert again.candidates == search.candidates


def test_the_state_of_another_list_is_refused() -> None:
    with pytest.raises(StateError, match="listed"):
        build(MEMBERS[1:5]).restore(build(MEMBERS[:5]).state(), [])


def test_repeated_and_unaffordable_architectures_are_named() -> None:
    limit = [Constraint(Metric.PARAMS_M, max=Metric.PARAMS_M.count_of(SMALLEST) / 1e6)]
    with pytest.raises(SettingsError) as caught:
        build([SMALLEST.genotype, SMALLEST.genotype, twelve_members().largest().genotype], constraints=limit)
    assert [problem.pointer for problem in caught.value.problems] == ["/1", "/2"]
    assert "within the limits (" in caught.value.problems[1].allowed


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least one architecture"):
        build([])


def test_no_member_of_the_space_is_refused() -> None:
    with pytest.raises(SpaceError):
        build([(1, 2.0, 2, 7)])
