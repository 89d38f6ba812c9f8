from __future__ import annotations

from typing import Any

import pytest

from models.architecture import Genotype
from search.metrics import Metric
from search.presets import resolve as make_space
from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import Resolved, resolve_search, seeded_genotypes
from service.jobs.spec import SearchSpec

MICRO = make_space("micro", img_size=8, in_chans=1)
SMALL, CENTRE, LARGE = MICRO.smallest().genotype, MICRO.centre().genotype, MICRO.largest().genotype


def resolve(found: list[Genotype], seeds: Any = "job_1", **fields: Any) -> Resolved:
    search = {"population": 8, "parents": 4, "population_from": seeds}
    body = {"method": "masktas", "dataset": "digits", "search": search, **fields}
    return resolve_search(SearchSpec.model_validate(body), BUILTINS["digits"], population=found)


def test_the_best_of_an_earlier_search_are_written_into_the_spec_which_then_repeats_itself() -> None:
    resolved = resolve([LARGE, CENTRE, LARGE])
    assert seeded_genotypes(resolved.spec.search) == [LARGE, CENTRE]
    again = resolve_search(resolved.spec, BUILTINS["digits"])
    assert again.spec == resolved.spec
    assert [w.code for w in resolved.warnings if w.code == "population_reduced"] == []


def test_what_the_new_search_cannot_propose_is_left_out_with_a_warning() -> None:
    limit = Metric.PARAMS_M.count_of(MICRO.centre(10)) / 1e6
    outside = (1, 4.0, 2, 999)
    resolved = resolve([LARGE, outside, CENTRE], constraints=[{"metric": "params_m", "max": limit}])
    assert seeded_genotypes(resolved.spec.search) == [CENTRE]
    (warning,) = [w for w in resolved.warnings if w.code == "population_reduced"]
    assert warning.pointer == "/search/population_from"
    assert "2 of 3" in warning.detail


def test_seeds_take_their_share_of_the_first_generation_and_no_more() -> None:
    found = [arch.genotype for arch, _ in zip(MICRO.members(), range(20), strict=False)]
    assert seeded_genotypes(resolve(found).spec.search) == found[:4]
    assert seeded_genotypes(resolve(found, {"job": "job_1", "share": 0.25}).spec.search) == found[:2]


def test_networks_may_be_named_without_an_earlier_search() -> None:
    genes = {"embed_dim": 48, "depth": 3, "num_heads": [2, 2, 2], "mlp_ratio": [2.0, 2.0, 2.0]}
    assert seeded_genotypes(resolve([], {"architectures": [genes]}).spec.search) == [SMALL]
    with pytest.raises(ValidationFailed) as refused:
        resolve([], {"architectures": [genes, "nobody"]})
    assert refused.value.errors[0].pointer == "/search/population_from/architectures/1/name"


@pytest.mark.parametrize("seeds", [{"share": 0.5}, {"job": "job_1", "share": 1.0}])
def test_seeds_that_leave_nothing_random_or_come_from_nowhere_are_no_spec(seeds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="population_from"):
        resolve([], seeds)
