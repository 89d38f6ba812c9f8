"""What a search body leaves open is filled; what cannot work is refused with a pointer."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from models.relations import MIN_VISIBLE_PATCHES
from search.metrics import Metric
from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ConstraintUnsatisfiable, ServiceError, ValidationFailed
from service.jobs.resolve import MIN_VISIBLE, Resolved, resolve_search, space_of, teacher_architecture
from service.jobs.spec import SearchSpec

DIGITS = BUILTINS["digits"]
TINY_TEACHER = {"embed_dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2.0}
PHOTOS = replace(DIGITS, name="photos", images=100_000, channels=3, min_side=300)


def resolve(dataset: DatasetInfo = DIGITS, **fields: Any) -> Resolved:
    return resolve_search(SearchSpec.model_validate({"method": "masktas", "dataset": "digits", **fields}), dataset)


def refusal(dataset: DatasetInfo = DIGITS, **fields: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        resolve(dataset, **fields)
    return caught.value


def test_a_filled_spec_has_no_open_field_and_resolves_to_itself() -> None:
    filled = resolve().spec
    for part in (filled.supernet, filled.teacher.pretrain):
        assert None not in (part.epochs, part.batch_size, part.lr, part.mask_ratio, part.decoder)
        assert None not in (part.crop_scale, part.horizontal_flip)
    assert None not in (filled.retrain.mode, filled.retrain.epochs, filled.retrain.batch_size, filled.retrain.lr)
    assert resolve_search(filled, DIGITS).spec == filled


def test_the_filled_spec_names_the_same_space_and_a_buildable_teacher() -> None:
    resolved = resolve(space={"preset": "micro", "overrides": {"embed_dim": [32, 48]}})
    assert space_of(resolved.spec) == resolved.space
    assert resolved.space.embed_dim == (32, 48)
    teacher = teacher_architecture(resolved.spec.teacher.pretrain, resolved.space)
    assert (teacher.embed_dim, teacher.num_patches, teacher.num_classes) == (48, 16, 0)


@pytest.mark.parametrize(
    ("min_side", "preset", "img_size"),
    [(8, "micro", 8), (30, "micro", 28), (64, "micro", 64), (65, "masktas-tiny", 224), (500, "masktas-tiny", 224)],
)
def test_the_default_space_follows_the_image_size(min_side: int, preset: str, img_size: int) -> None:
    space = resolve(replace(DIGITS, min_side=min_side)).space
    assert (space.name, space.img_size) == (preset, img_size)


def test_large_networks_get_the_published_recipe() -> None:
    spec = resolve(PHOTOS).spec
    assert spec.supernet.batch_size == 1024
    assert spec.supernet.lr == pytest.approx(6e-4)
    assert spec.supernet.mask_ratio == 0.75
    assert spec.retrain.lr == pytest.approx(6.25e-4 * 1024 / 256)


@pytest.mark.parametrize(
    ("dataset", "fields", "scale", "flip"),
    [
        (PHOTOS, {}, (0.2, 1.0), True),
        (DIGITS, {}, (1.0, 1.0), False),
        (PHOTOS, {"space": {"preset": "masktas-tiny", "img_size": 64}}, (1.0, 1.0), False),
        (PHOTOS, {"space": {"preset": "micro", "img_size": 96}}, (1.0, 1.0), False),
        (DIGITS, {"supernet": {"crop_scale": [0.5, 0.75]}}, (0.5, 0.75), False),
        (PHOTOS, {"supernet": {"crop_scale": [1, 1], "horizontal_flip": False}}, (1.0, 1.0), False),
    ],
)
def test_large_photographs_are_cropped_and_mirrored_unless_told_otherwise(
    dataset: DatasetInfo, fields: dict[str, Any], scale: tuple[float, float], flip: bool
) -> None:
    supernet = resolve(dataset, **fields).spec.supernet
    assert (supernet.crop_scale, supernet.horizontal_flip) == (scale, flip)


def test_teacher_has_crops_of_its_own() -> None:
    pretrain = resolve(PHOTOS, supernet={"crop_scale": [0.9, 1.0]}).spec.teacher.pretrain
    assert (pretrain.crop_scale, pretrain.horizontal_flip) == ((0.2, 1.0), True)


@pytest.mark.parametrize("scale", [[0.5, 0.2], [0.0, 1.0], [0.5, 1.5], [0.5]])
def test_impossible_crops_are_refused(scale: list[float]) -> None:
    with pytest.raises(ValidationError, match="crop_scale"):
        SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "supernet": {"crop_scale": scale}})


def test_small_grids_keep_enough_patches_visible() -> None:
    assert resolve().spec.supernet.mask_ratio == 0.5  # 16 patches, 8 visible
    error = refusal(supernet={"mask_ratio": 0.9})
    assert [item.pointer for item in error.errors] == ["/supernet/mask_ratio"]
    assert error.errors[0].allowed == {"max": 0.75}
    assert resolve(supernet={"mask_ratio": 0.75}).spec.supernet.mask_ratio == 0.75


@pytest.mark.parametrize("grid", range(4, 9))
def test_the_highest_mask_ratio_that_a_refusal_names_is_accepted(grid: int) -> None:
    space = {"preset": "micro", "img_size": 2 * grid, "overrides": {"patch_size": 2}}
    highest = refusal(space=space, supernet={"mask_ratio": 0.95}).errors[0].allowed["max"]
    assert resolve(space=space, supernet={"mask_ratio": highest}).spec.supernet.mask_ratio == highest


def test_relations_need_as_many_patches_as_a_search_demands() -> None:
    assert MIN_VISIBLE == MIN_VISIBLE_PATCHES


def test_without_labels_nothing_is_retrained_and_asking_for_it_is_refused() -> None:
    unlabelled = replace(DIGITS, labelled=False, classes=())
    assert resolve(unlabelled).spec.retrain.mode == "none"
    assert resolve(unlabelled).num_classes == 0
    assert refusal(unlabelled, retrain={"mode": "finetune"}).errors[0].pointer == "/retrain/mode"


def test_ignored_labels_count_as_none() -> None:
    body = {"method": "masktas", "dataset": {"id": "digits", "labels": "ignored"}}
    assert resolve_search(SearchSpec.model_validate(body), DIGITS).spec.retrain.mode == "none"
    with pytest.raises(ValidationFailed, match="ignored"):
        resolve_search(SearchSpec.model_validate({**body, "retrain": {"mode": "finetune"}}), DIGITS)


def test_a_batch_larger_than_the_training_split_is_reduced_with_a_warning() -> None:
    resolved = resolve(replace(DIGITS, images=100), retrain={"batch_size": 500})
    assert resolved.spec.retrain.batch_size == 70
    assert [item.pointer for item in resolved.warnings] == ["/retrain/batch_size"]
    assert resolved.spec.supernet.batch_size == 64


@pytest.mark.parametrize(
    ("official", "left"), [({}, 70), ({"test_images": 40}, 54), ({"test_images": 40, "val_images": 20}, 40)]
)
def test_default_batches_leave_official_splits_out(official: dict[str, int], left: int) -> None:
    resolved = resolve(replace(DIGITS, images=100, **official), retrain={"batch_size": 100})
    assert resolved.spec.retrain.batch_size == left
    assert resolved.spec.supernet.batch_size == min(64, left)


def test_too_few_images_are_refused() -> None:
    assert refusal(replace(DIGITS, images=2)).errors[0].code == "too_few_images"


def test_limits_outside_the_reachable_range_are_refused_with_the_range() -> None:
    lowest = next(r for r in resolve().reachable if r.metric is Metric.PARAMS_M)
    met = resolve(constraints=[{"metric": "params_m", "max": lowest.min}])
    assert met.spec.constraints[0].max == lowest.min
    error = refusal(constraints=[{"metric": "params_m", "max": lowest.min - 1e-6}])
    assert isinstance(error, ConstraintUnsatisfiable)
    assert error.errors[0].pointer == "/constraints/0/max"
    assert lowest.to_json() in error.extra["reachable"]
    above = refusal(constraints=[{"metric": "gmacs", "min": 1.0}, {"metric": "params_m", "min": 99.0}])
    assert [item.pointer for item in above.errors] == ["/constraints/0/min", "/constraints/1/min"]


def test_a_limit_without_effect_is_a_warning() -> None:
    warnings = resolve(constraints=[{"metric": "params_m", "max": 50.0}]).warnings
    assert [item.code for item in warnings] == ["not_binding"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"space": "micron"}, "/space/preset"),
        ({"space": {"preset": "micro", "overrides": {"depth": [0]}}}, "/space/overrides/depth/0"),
        ({"space": {"preset": "micro", "img_size": 30}}, "/space/img_size"),
        ({"supernet": {"decoder": {"embed_dim": 28, "depth": 1, "num_heads": 8}}}, "/supernet/decoder/num_heads"),
        ({"supernet": {"mask_ratio": 0.0}}, "/supernet/mask_ratio"),
        ({"supernet": {"decoder": {"embed_dim": 9, "depth": 1, "num_heads": 1}}}, "/supernet/decoder/embed_dim"),
        ({"supernet": {"mask_ratio": 0.0, "reconstruction": False}}, "/supernet/mask_ratio"),
        (
            {"teacher": {"pretrain": {"architecture": TINY_TEACHER | {"mlp_ratio": 0.001}}}},
            "/teacher/pretrain/architecture/mlp_ratio",
        ),
    ],
)
def test_contradictions_are_refused_where_they_stand(fields: dict[str, Any], pointer: str) -> None:
    error = refusal(**fields)
    assert isinstance(error, ValidationFailed)
    assert [item.pointer for item in error.errors] == [pointer]


LISTED = {"embed_dim": 48, "depth": 3, "num_heads": [2, 3, 4], "mlp_ratio": [2.0, 3.0, 4.0]}


def test_listed_networks_may_be_named_and_their_genes_are_filled_in() -> None:
    search = {"algorithm": "listed", "architectures": ["masktas-small"]}
    spec = resolve(PHOTOS, space="masktas-small", search=search).spec
    assert spec.search.baseline == "none"
    assert spec.search.architectures is not None
    (entry,) = spec.search.architectures
    assert (entry.name, entry.embed_dim, entry.depth) == ("masktas-small", 384, 13)
    assert resolve_search(spec, PHOTOS).spec == spec


def test_a_search_that_proposes_its_own_networks_is_compared_with_random_search() -> None:
    assert resolve().spec.search.baseline == "random"


@pytest.mark.parametrize(
    ("entry", "pointer"),
    [
        ("masktas-huge", "/search/architectures/1/name"),
        ({**LISTED, "depth": 2, "num_heads": [2, 3], "mlp_ratio": [2.0, 3.0]}, "/search/architectures/1/depth"),
        ({**LISTED, "embed_dim": 50}, "/search/architectures/1/embed_dim"),
        ({**LISTED, "num_heads": [2, 9, 4]}, "/search/architectures/1/num_heads/1"),
        (LISTED, "/search/architectures/1"),
    ],
)
def test_a_listed_network_that_cannot_be_scored_is_named(entry: object, pointer: str) -> None:
    error = refusal(search={"algorithm": "listed", "architectures": [LISTED, entry]})
    assert [item.pointer for item in error.errors] == [pointer]


def test_a_published_name_is_refused_where_its_genes_are_another_network() -> None:
    space = {"preset": "masktas-small", "overrides": {"head_dim": 32}}
    error = refusal(PHOTOS, space=space, search={"algorithm": "listed", "architectures": ["masktas-small"]})
    assert [item.pointer for item in error.errors] == ["/search/architectures/0/name"]
    assert "64" in error.errors[0].detail


def test_a_listed_network_beyond_a_limit_is_refused() -> None:
    search = {"algorithm": "listed", "architectures": [LISTED]}
    error = refusal(search=search, constraints=[{"metric": "params_m", "max": 0.06}])
    assert [item.pointer for item in error.errors] == ["/search/architectures/0"]


@pytest.mark.parametrize(
    "search",
    [
        {"algorithm": "listed"},
        {"architectures": [LISTED]},
        {"algorithm": "listed", "architectures": [LISTED, LISTED], "max_evaluations": 1},
        {"algorithm": "listed", "architectures": [{"name": "x", "depth": 3}]},
        {"algorithm": "listed", "architectures": [{}]},
        {"algorithm": "listed", "architectures": [{**LISTED, "depth": 4}]},
    ],
)
def test_a_list_that_contradicts_itself_is_no_spec(search: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "search": search})


def test_cheap_measures_are_taken_beside_the_metric() -> None:
    search = resolve().spec.search
    assert (search.metric, search.evaluation.companions) == (
        "consistency",
        ["consistency_bare", "feature", "effective_rank"],
    )
    assert resolve(search={"metric": "width"}).spec.search.evaluation.companions == []
    assert resolve(search={"evaluation": {"companions": True}}).spec.search.evaluation.companions is True


def test_without_distillation_the_metric_compares_bare_tokens() -> None:
    search = resolve(supernet={"distillation": False}).spec.search
    assert (search.metric, search.evaluation.companions) == ("consistency_bare", ["effective_rank"])


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        (
            {"supernet": {"reconstruction": False}, "search": {"metric": "fused"}},
            ["/search/metric", "/supernet/reconstruction"],
        ),
        (
            {"supernet": {"distillation": False}, "search": {"fusion": ["consistency_bare", "feature"]}},
            ["/search/fusion/1", "/supernet/distillation"],
        ),
        (
            {"supernet": {"reconstruction": False}, "search": {"metric": "reconstruction"}},
            ["/search/metric", "/supernet/reconstruction"],
        ),
        (
            {"supernet": {"distillation": False}, "search": {"metric": "consistency"}},
            ["/search/metric", "/supernet/distillation"],
        ),
        ({"supernet": {"beta": 0.0}, "search": {"metric": "feature"}}, ["/search/metric", "/supernet/beta"]),
        (
            {
                "supernet": {"reconstruction": False},
                "search": {"evaluation": {"companions": ["feature", "reconstruction"]}},
            },
            ["/search/evaluation/companions/1", "/supernet/reconstruction"],
        ),
    ],
)
def test_measures_that_the_training_does_not_leave_are_refused(fields: dict[str, Any], pointers: list[str]) -> None:
    error = refusal(**fields)
    assert [item.pointer for item in error.errors] == pointers
    assert "consistency_bare" in error.errors[0].allowed


def test_fused_is_made_of_consistency_and_reconstruction() -> None:
    assert resolve().spec.search.fusion == ["consistency", "reconstruction"]
    bare = resolve(supernet={"distillation": False}, search={"metric": "fused"}).spec.search
    assert (bare.metric, bare.fusion) == ("fused", ["consistency_bare", "reconstruction"])
    assert resolve(supernet={"reconstruction": False}).spec.search.fusion is None
    named = resolve(search={"metric": "fused", "fusion": ["feature", "consistency"]}).spec.search
    assert named.fusion == ["feature", "consistency"]
    with pytest.raises(ValidationError, match="each measure once"):
        resolve(search={"fusion": ["feature", "feature"]})


def test_scores_are_taken_under_the_masks_of_the_training_unless_asked_otherwise() -> None:
    assert resolve(supernet={"mask_ratio": 0.25}).spec.search.evaluation.mask_ratio == 0.25
    assert resolve(search={"evaluation": {"mask_ratio": 0.75}}).spec.search.evaluation.mask_ratio == 0.75
    error = refusal(search={"evaluation": {"mask_ratio": 0.9}})
    assert [item.pointer for item in error.errors] == ["/search/evaluation/mask_ratio"]


def test_relations_are_compared_where_distillation_has_compared_tokens() -> None:
    assert resolve().spec.search.evaluation.depths == [1.0]
    supernet = {"distill": {"layer": "three_quarter"}}
    assert resolve(supernet=supernet).spec.search.evaluation.depths == [0.75]
    assert resolve(supernet={**supernet, "distillation": False}).spec.search.evaluation.depths == [1.0]
    asked = {"evaluation": {"depths": [0.5, 1.0]}}
    assert resolve(supernet=supernet, search=asked).spec.search.evaluation.depths == [0.5, 1.0]


def test_cosines_without_standardised_rows_get_a_sharper_softmax() -> None:
    assert resolve().spec.search.evaluation.temperature == 1.0
    assert resolve(search={"evaluation": {"standardise": False}}).spec.search.evaluation.temperature == 0.1


def test_images_whose_teacher_side_exceeds_the_memory_are_left_out_with_a_warning() -> None:
    space = {"preset": "micro", "img_size": 512, "overrides": {"patch_size": 8}}  # 4096 patches, 1024 visible
    resolved = resolve(PHOTOS, space=space)
    [warning] = [item for item in resolved.warnings if item.pointer == "/search/evaluation/images"]
    images = resolved.spec.search.evaluation.images
    assert warning.allowed == {"max": images}
    assert 2**31 - 10_000_000 < images * (2 * 1024 * 1023 + 1025 * 96) * 4 <= 2**31
    assert resolve(replace(PHOTOS, images=1000), space=space).spec.search.evaluation.images == 2048  # of 100 there are


def test_an_evaluation_that_fits_no_memory_is_refused() -> None:
    space = {"preset": "micro", "img_size": 512, "overrides": {"patch_size": 4}}  # 16384 patches, 4096 visible
    error = refusal(PHOTOS, space=space, search={"evaluation": {"mask_seeds": 2}})
    assert "/search/evaluation/mask_seeds" in [item.pointer for item in error.errors]


@pytest.mark.parametrize(
    ("asked", "block", "network"),
    [
        ({}, 0.2, 0.4),
        ({"mutation": "paper"}, 0.4, 0.2),
        ({"mutation": "paper", "block_mutation_prob": 0.0}, 0.0, 0.2),
        ({"network_mutation_prob": 1.0}, 0.2, 1.0),
    ],
)
def test_published_mutations_have_names_and_single_probabilities_go_before_them(
    asked: dict[str, Any], block: float, network: float
) -> None:
    filled = resolve(search=asked).spec.search
    assert (filled.block_mutation_prob, filled.network_mutation_prob) == (block, network)


@pytest.mark.parametrize(
    ("search", "allowed"),
    [
        ({"metric": "fused"}, {"metric": ["consistency", "consistency_bare", "reconstruction", "feature"]}),
        ({"metric": "params"}, {"metric": ["consistency", "consistency_bare", "reconstruction", "feature"]}),
        ({"algorithm": "random"}, {"algorithm": ["evolution"]}),
    ],
    ids=["fused", "params", "random"],
)
def test_racing_needs_a_mean_over_images_and_an_algorithm_that_looks_at_the_best(
    search: dict[str, Any], allowed: dict[str, list[str]]
) -> None:
    [error] = refusal(search={**search, "evaluation": {"racing": 0.05}}).errors
    assert (error.pointer, error.code, error.allowed) == ("/search/evaluation/racing", "not_raceable", allowed)


@pytest.mark.parametrize("field", ["workers", "processes"])
def test_racing_is_refused_together_with_several_that_score(field: str) -> None:
    errors = refusal(search={"evaluation": {"racing": 0.05, field: 2}}).errors
    assert {error.pointer: error.allowed for error in errors} == {
        "/search/evaluation/racing": [None],
        f"/search/evaluation/{field}": [1],
    }
    assert {error.code for error in errors} == {"not_divisible"}


def test_racing_is_off_unless_asked_for() -> None:
    assert resolve().spec.search.evaluation.racing is None
    assert resolve(search={"evaluation": {"racing": 0.05}}).spec.search.evaluation.racing == 0.05
