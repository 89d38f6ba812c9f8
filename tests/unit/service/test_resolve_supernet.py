"""The options of the supernet's objective: defaults, contradictions, and that both sides name them alike."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from models.distill import FeatureLoss, Layer, Positions, ProjectorKind, TargetNorm
from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import resolve_search, space_of
from service.jobs.resolve.supernet import check_objective
from service.jobs.spec import DistillSpec, SearchSpec, SupernetSpec
from workers.stages.supernet import distill_config
from workers.training.subnets import Sampling

DIGITS = BUILTINS["digits"]
LIMITS = [{"metric": "params_m", "max": 0.2}]


def resolve(**fields: Any) -> SearchSpec:
    spec = SearchSpec.model_validate({"method": "masktas", "dataset": "digits", **fields})
    filled = resolve_search(spec, DIGITS).spec
    assert resolve_search(filled, DIGITS).spec == filled, "a filled spec resolves to itself"
    return filled


def refused(**fields: Any) -> dict[str, Any]:
    """Pointers of a refusal, with what is allowed."""
    with pytest.raises(ValidationFailed) as caught:
        resolve(**fields)
    return {item.pointer: item.allowed for item in caught.value.errors}


def test_the_objective_is_masktas_unless_told_otherwise() -> None:
    supernet = resolve().supernet
    assert supernet.distill.model_dump() == {
        "positions": "visible",
        "layer": "last",
        "loss": "smooth_l1",
        "projector": "linear",
        "target_norm": "layernorm",
    }
    assert (supernet.sampling, supernet.students, supernet.recon_target) == ("uniform", 1, "pixels")


def test_relations_are_filled_without_projector_and_norm() -> None:
    distill = resolve(supernet={"distill": {"loss": "relation"}}).supernet.distill
    assert (distill.projector, distill.target_norm) == ("none", "none")


def test_sandwich_has_three_students_unless_told_otherwise() -> None:
    assert resolve(supernet={"sampling": "sandwich"}).supernet.students == 3
    assert resolve(supernet={"sampling": "sandwich", "students": 2}).supernet.students == 2


def test_decoder_of_mae_has_a_short_name() -> None:
    decoder = resolve(supernet={"decoder": "mae"}).supernet.decoder
    assert decoder is not None
    assert decoder.model_dump() == {"embed_dim": 512, "depth": 8, "num_heads": 16}
    with pytest.raises(ValidationError, match="found 'huge', allowed is 'mae' or an object"):
        resolve(supernet={"decoder": "huge"})


@pytest.mark.parametrize(
    ("supernet", "expected"),
    [
        (
            {"distill": {"loss": "relation", "projector": "linear", "target_norm": "l2"}},
            {"/supernet/distill/projector": ["none"], "/supernet/distill/target_norm": ["none"]},
        ),
        (
            {"distill": {"loss": "l1", "projector": "none"}},
            {"/supernet/distill/projector": ["linear", "mlp1", "mlp2"]},
        ),
        (
            {"distill": {"layer": "three_quarter"}, "reconstruction": False},
            {"/supernet/distill/layer": ["last"]},
        ),
        (
            {"distill": {"loss": "relation", "positions": "masked"}, "mask_ratio": 0.1},
            {"/supernet/mask_ratio": {"min": 0.25}},
        ),
        ({"recon_target": "teacher", "reconstruction": False}, {"/supernet/recon_target": ["pixels"]}),
        ({"recon_target": "both", "norm_targets": False}, {"/supernet/norm_targets": [True]}),
        ({"recon_target": "teacher", "norm_targets": False}, {"/supernet/norm_targets": [True]}),
        ({"sampling": "sandwich", "students": 1}, {"/supernet/students": {"min": 2}}),
        ({"sampling": "window"}, {"/supernet/sampling": ["uniform", "sandwich"]}),
    ],
)
def test_contradictions_are_refused_where_they_stand(supernet: dict[str, Any], expected: dict[str, Any]) -> None:
    assert refused(supernet=supernet) == expected


@pytest.mark.parametrize(
    "supernet",
    [
        {"distill": {"positions": "masked"}, "reconstruction": False},
        {"distill": {"layer": "three_quarter", "positions": "all"}, "reconstruction": False},
        {"distill": {"loss": "relation", "positions": "all"}, "mask_ratio": 0.25},
        {"recon_target": "both", "distillation": False},
        {"distill": {"projector": "none"}, "distillation": False},
    ],
)
def test_unusual_but_sound_combinations_are_accepted(supernet: dict[str, Any]) -> None:
    resolve(supernet=supernet)


def test_a_window_is_accepted_with_limits() -> None:
    assert resolve(supernet={"sampling": "window"}, constraints=LIMITS).supernet.students == 1


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("positions", Positions),
        ("layer", Layer),
        ("loss", FeatureLoss),
        ("projector", ProjectorKind),
        ("target_norm", TargetNorm),
    ],
)
def test_every_option_that_a_body_may_name_exists(field: str, names: Any) -> None:
    annotation = DistillSpec.model_fields[field].annotation
    literals = [part for part in get_args(annotation) if part is not type(None)]
    allowed = [name for part in literals for name in (get_args(part) or [part])]
    assert set(allowed) == {name.value for name in names}


def test_every_sampling_that_a_body_may_name_exists() -> None:
    literal, _ = get_args(SupernetSpec.model_fields["sampling"].annotation)
    assert {Sampling(name) for name in get_args(literal)} == set(Sampling) - {Sampling.WIDTHS}


def test_options_of_a_body_reach_the_objective() -> None:
    asked = {"positions": "all", "layer": "three_quarter", "loss": "l1", "projector": "mlp2", "target_norm": "l2"}
    config = distill_config(resolve(supernet={"distill": asked}).supernet)
    assert {name: getattr(config, name) for name in asked} == asked


@pytest.mark.parametrize(
    ("distill", "pointer", "allowed"),
    [
        ({"loss": "relation"}, "/supernet/distill/loss", ["smooth_l1", "l1", "l2"]),
        ({"positions": "masked"}, "/supernet/distill/positions", ["visible", "all"]),
    ],
)
def test_measures_of_projected_tokens_need_a_projector(distill: dict[str, Any], pointer: str, allowed: Any) -> None:
    assert resolve(supernet={"distill": distill}).search.metric == "consistency_bare"
    assert refused(supernet={"distill": distill}, search={"metric": "feature"})[pointer] == allowed


def test_predictions_of_a_teacher_without_decoder_are_refused() -> None:
    spec = resolve(supernet={"recon_target": "teacher"})
    with pytest.raises(ValidationFailed) as caught:
        check_objective(spec.supernet, space_of(spec), None, spec)
    [item] = caught.value.errors
    assert (item.pointer, item.allowed) == ("/supernet/recon_target", ["pixels"])
    check_objective(resolve().supernet, space_of(spec), None, spec)
