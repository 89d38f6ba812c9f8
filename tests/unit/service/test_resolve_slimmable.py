"""What a body of a slimmable network leaves open is filled; what contradicts itself is refused with a pointer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from models.architecture import Architecture, Pool
from models.foreign.layout import VitLayout
from search.metrics import FORMULA_METRICS
from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ConstraintUnsatisfiable, ErrorItem, ServiceError
from service.jobs.resolve import ResolvedSlimmable, labels_after, resolve_slimmable
from service.jobs.spec import SlimmableSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo

DIGITS = BUILTINS["digits"]
PHOTOS = replace(DIGITS, name="photos", images=100_000, channels=3, min_side=300)
SMALL_VIT = Architecture(
    embed_dim=384, depth=12, num_heads=(6,) * 12, mlp_ratio=(4.0,) * 12, num_classes=0, pool=Pool.TOKEN
)


def teacher(layout: VitLayout | None = None, num_classes: int = 0, classes: tuple[str, ...] = ()) -> TeacherInfo:
    layout = layout or VitLayout(arch=SMALL_VIT)
    info = {"layout": layout.to_json(), "classes": list(classes)}
    architecture = layout.arch.with_classes(num_classes).to_json()
    return TeacherInfo(id=UUID(int=1), name="T", digest="ab" * 32, architecture=architecture, info=info)


def resolve(
    dataset: DatasetInfo = DIGITS, *, known: TeacherInfo | None = None, method: str = "scala", **fields: Any
) -> ResolvedSlimmable:
    spec = SlimmableSpec.model_validate({"method": method, "dataset": "digits", **fields})
    init = known if spec.init is not None else None
    return resolve_slimmable(spec, dataset, None, known if spec.teacher is not None else None, init)


def refused(dataset: DatasetInfo = DIGITS, **fields: Any) -> list[ErrorItem]:
    with pytest.raises(ServiceError) as caught:
        resolve(dataset, **fields)
    return list(caught.value.errors)


def places(dataset: DatasetInfo = DIGITS, **fields: Any) -> list[tuple[str, str]]:
    return [(item.pointer, item.code) for item in refused(dataset, **fields)]


def test_small_images_get_a_small_network_on_four_by_four_patches() -> None:
    network = resolve(replace(DIGITS, min_side=30)).spec.network
    assert (network.embed_dim, network.depth, network.num_heads, network.img_size, network.patch_size) == (
        96,
        4,
        3,
        28,
        7,
    )
    assert (network.in_chans, network.pool, network.norm_eps) == (1, "token", 1e-6)


@pytest.mark.parametrize(("patch", "side"), [(2, 8), (3, 9), (5, 10), (7, 14), (8, 8), (32, 32)])
def test_images_are_as_large_as_patches_need(patch: int, side: int) -> None:
    assert resolve(network={"patch_size": patch}).spec.network.img_size == side


def test_photographs_get_a_small_deit() -> None:
    network = resolve(PHOTOS).net.largest
    assert (network.embed_dim, network.depth, network.num_heads[0], network.img_size) == (384, 12, 6, 224)
    assert (network.patch_size, network.in_chans, network.num_classes) == (16, 3, 10)


@pytest.mark.parametrize(
    ("network", "smallest", "step", "trained"),
    [
        ({}, 0.25, 1 / 16, 13),
        ({"embed_dim": 48, "num_heads": 3}, 0.25, 1 / 16, 13),
        ({"embed_dim": 24, "num_heads": 3}, 0.25, 1 / 8, 7),
        ({"embed_dim": 12, "num_heads": 3}, 0.25, 1 / 4, 4),
        ({"embed_dim": 30, "num_heads": 1}, 8 / 30, "every", 23),
        ({"embed_dim": 6, "num_heads": 3}, 1 / 2, "every", 2),
    ],
)
def test_the_default_grid_is_the_finest_of_whole_channels(
    network: dict[str, int], smallest: float, step: float | str, trained: int
) -> None:
    found = resolve(network=network)
    assert (found.spec.widths.smallest, found.spec.widths.step) == (smallest, step)
    assert len(found.net.head_dims) == trained


@pytest.mark.parametrize(
    ("smallest", "step", "trained"),
    [(0.5, 0.5, 2), (0.5, 0.25, 3), (0.75, 0.125, 3), (0.25, 0.25, 4), (0.125, 0.125, 8), (0.75, 1 / 32, 9)],
)
def test_grids_of_few_widths_are_grids(smallest: float, step: float, trained: int) -> None:
    assert len(resolve(widths={"smallest": smallest, "step": step}).net.head_dims) == trained


@pytest.mark.parametrize(
    ("widths", "pointer"),
    [
        ({"smallest": 0.125, "step": 0.25}, "/widths/step"),  # 4.5 widths
        ({"step": 0.3}, "/widths/step"),
        ({"step": 1e-300}, "/widths/step"),
        ({"smallest": 0.3}, "/widths/smallest"),
        ({"smallest": 1e-300}, "/widths/smallest"),
        ({"smallest": 1 - 1e-12}, "/widths/smallest"),
    ],
)
def test_grids_of_broken_channels_are_refused_with_those_that_are_none(widths: dict[str, Any], pointer: str) -> None:
    (item,) = refused(widths=widths)
    assert item.pointer == pointer
    assert str(next(reversed(widths.values()))) in item.detail
    assert "32" in str(item.allowed)


def test_heads_of_one_channel_have_no_widths() -> None:
    assert {pointer for pointer, _ in places(network={"embed_dim": 3, "num_heads": 3})} == {
        "/network/embed_dim",
        "/network/num_heads",
    }


def test_a_smallest_width_without_hidden_channels_is_refused_at_the_ratio() -> None:
    assert places(network={"embed_dim": 12, "num_heads": 3, "mlp_ratio": 0.1}) == [
        ("/network/mlp_ratio", "invalid_value")
    ]


@pytest.mark.parametrize(
    ("network", "pointer"),
    [
        ({"embed_dim": 97, "num_heads": 3}, "/network/num_heads"),
        ({"embed_dim": 97}, "/network/num_heads"),
        ({"embed_dim": 8192, "num_heads": 2}, "/network/embed_dim"),
        ({"img_size": 9}, "/network/patch_size"),
        ({"img_size": 9, "patch_size": 2}, "/network/img_size"),
        ({"distilled": True, "pool": "avg"}, "/network/pool"),
    ],
)
def test_networks_that_cannot_be_built_are_refused_at_their_field(network: dict[str, Any], pointer: str) -> None:
    (item,) = refused(network=network)
    assert item.pointer == pointer
    assert item.allowed


def test_scalas_recipe_for_photographs_follows_the_width() -> None:
    small = resolve(PHOTOS).spec.training
    base = resolve(PHOTOS, network={"embed_dim": 768, "num_heads": 12}).spec.training
    assert (small.epochs, small.batch_size, small.lr, small.randaugment_magnitude) == (100, 1024, 4e-3, 1.0)
    assert (base.epochs, base.batch_size, base.lr, base.randaugment_magnitude) == (300, 1024, 2e-3, 4.0)
    assert (small.mixup, small.cutmix, small.erasing, small.color_jitter, small.repeats) == (0.8, 1.0, 0.25, 0.3, 1)


def test_separate_networks_are_trained_by_deits_recipe_at_the_same_length() -> None:
    spec = resolve(PHOTOS, method="separate").spec.training
    assert (spec.epochs, spec.lr, spec.repeats, spec.randaugment_magnitude) == (100, 1e-3, 3, 9.0)


def test_a_method_fills_what_it_has_and_nothing_else() -> None:
    scala, usnet, separate = (resolve(method=method).spec.training for method in ("scala", "usnet", "separate"))
    assert (scala.stable_sampling, scala.teacher_of_subnets, scala.noise_calibration) == ("paper", "next_larger", True)
    assert (usnet.stable_sampling, usnet.teacher_of_subnets, usnet.noise_calibration) == (None, "full", False)
    assert (separate.teacher_of_subnets, separate.kd_weight, separate.full_warm_epochs) == (None, None, None)


@pytest.mark.parametrize(
    ("method", "training", "fields"),
    [
        ("usnet", {"stable_sampling": "paper"}, ["stable_sampling"]),
        ("usnet", {"noise_calibration": True}, ["noise_calibration"]),
        ("usnet", {"teacher_of_subnets": "none", "cross_entropy": False}, ["teacher_of_subnets", "cross_entropy"]),
        ("separate", {"kd_weight": 1.0, "full_warm_epochs": 0}, ["kd_weight", "full_warm_epochs"]),
    ],
)
def test_switches_that_a_method_has_not_are_refused(method: str, training: dict[str, Any], fields: list[str]) -> None:
    assert places(method=method, training=training) == [(f"/training/{field}", "not_with_method") for field in fields]


def test_what_a_method_does_anyway_may_be_said() -> None:
    training = {"teacher_of_subnets": "full", "noise_calibration": False, "cross_entropy": True}
    assert resolve(method="usnet", training=training).spec == resolve(method="usnet").spec


@pytest.mark.parametrize(
    ("training", "fields"),
    [
        ({"full_warm_epochs": 10}, ["full_warm_epochs"]),
        ({"early_distillation_after_epochs": 10}, ["early_distillation_after_epochs"]),
        ({"noise_calibration": {"after_epochs": 10}}, ["noise_calibration/after_epochs"]),
        ({"teacher_of_subnets": "none", "noise_calibration": False}, ["teacher_of_subnets", "noise_calibration"]),
        (
            {"early_distillation_after_epochs": 3, "noise_calibration": {"after_epochs": 2}},
            ["teacher_of_subnets", "noise_calibration", "early_distillation_after_epochs"],
        ),
    ],
)
def test_schedules_that_leave_widths_nothing_to_learn_are_refused(training: dict[str, Any], fields: list[str]) -> None:
    found = places(training={"epochs": 10, **training})
    assert [pointer for pointer, _ in found] == [f"/training/{field}" for field in fields]


def test_epochs_of_the_whole_network_alone_may_come_before_all_else() -> None:
    training = {"epochs": 10, "full_warm_epochs": 3, "early_distillation_after_epochs": 3, "noise_calibration": False}
    assert labels_after(resolve(training=training).spec.training) is None


@pytest.mark.parametrize(("given", "epoch"), [(True, 0), (False, None), ({"after_epochs": 4}, 4)])
def test_noise_calibration_says_from_when_labels_are_learnt(given: Any, epoch: int | None) -> None:
    assert labels_after(resolve(training={"noise_calibration": given}).spec.training) == epoch


def test_a_registered_teacher_without_a_head_gives_features_and_networks_without_heads() -> None:
    found = resolve(PHOTOS, known=teacher(), teacher="tch_x")
    assert found.spec.teacher is not None
    assert found.spec.teacher.kind == "features"
    assert (found.spec.training.cross_entropy, found.spec.training.noise_calibration) == (False, False)
    assert found.num_classes == 0


def test_a_registered_teacher_with_a_head_for_the_classes_gives_logits() -> None:
    found = resolve(PHOTOS, known=teacher(num_classes=10, classes=PHOTOS.classes), teacher="tch_x")
    assert found.spec.teacher is not None
    assert found.spec.teacher.kind == "logits"
    assert found.num_classes == 10


def test_a_registered_teacher_with_a_head_for_other_classes_gives_features() -> None:
    found = resolve(PHOTOS, known=teacher(num_classes=1000), teacher="tch_x").spec.teacher
    assert found is not None
    assert found.kind == "features"


def test_a_method_that_needs_logits_refuses_a_teacher_without_them() -> None:
    assert places(PHOTOS, method="usnet", known=teacher(), teacher="tch_x") == [("/teacher/kind", "no_logits")]


@pytest.mark.parametrize("known", [teacher(), teacher(num_classes=1000), teacher(num_classes=10, classes=("x",) * 10)])
def test_logits_of_other_classes_are_refused(known: TeacherInfo) -> None:
    assert places(PHOTOS, known=known, teacher={"id": "tch_x", "kind": "logits"}) == [("/teacher/kind", "no_logits")]


@pytest.mark.parametrize(
    ("fields", "pointers"),
    [
        ({"training": {"cross_entropy": False}}, ["/teacher"]),
        ({"teacher": {"timm": "x", "kind": "features"}, "training": {"cross_entropy": True}},
         ["/training/cross_entropy", "/teacher/kind"]),
        ({"teacher": {"timm": "x", "kind": "features"}, "training": {"noise_calibration": True}},
         ["/training/noise_calibration"]),
        ({"teacher": {"timm": "x", "kind": "features"}, "network": {"distilled": True}}, ["/network/distilled"]),
        ({"teacher": {"train": {}, "kind": "features"}}, ["/teacher/kind"]),
        ({"teacher": {"timm": "x", "kind": "features"}, "method": "usnet"}, ["/teacher"]),
    ],
)  # fmt: skip
def test_labels_and_features_exclude_each_other(fields: dict[str, Any], pointers: list[str]) -> None:
    assert [item.pointer for item in refused(**fields)] == pointers


def test_a_teacher_that_is_trained_here_gets_a_whole_recipe() -> None:
    found = resolve(teacher={"train": {"epochs": 3}}).spec.teacher
    assert found is not None
    assert found.train is not None
    assert (found.kind, found.train.epochs, found.train.recipe, found.train.lr) == ("logits", 3, "small", 2e-3)
    assert places(teacher={"train": {"min_lr": 5}}) == [("/teacher/train/min_lr", "above_lr")]


def test_sizes_follow_from_start_weights_and_positions_from_the_images() -> None:
    layout = VitLayout(arch=replace(SMALL_VIT, norm_eps=1e-5), layer_scale=True)
    network = resolve(replace(PHOTOS, min_side=100), known=teacher(layout), init="tch_x").spec.network
    assert (network.embed_dim, network.num_heads, network.layer_scale, network.norm_eps) == (384, 6, True, 1e-5)
    assert (network.img_size, network.patch_size) == (224, 16)
    assert resolve(DIGITS, known=teacher(layout), init="tch_x").spec.network.img_size == 64


@pytest.mark.parametrize(
    ("field", "value"), [("embed_dim", 192), ("depth", 6), ("patch_size", 8), ("in_chans", 1), ("layer_scale", True)]
)
def test_a_size_other_than_that_of_start_weights_is_refused(field: str, value: Any) -> None:
    (item,) = refused(PHOTOS, known=teacher(), init="tch_x", network={field: value})
    assert (item.pointer, item.code) == (f"/network/{field}", "fixed_by_weights")
    assert item.allowed == [{"embed_dim": 384, "depth": 12, "patch_size": 16, "in_chans": 3}.get(field, False)]


def test_a_published_distillation_token_makes_the_network_distilled() -> None:
    distilled = teacher(VitLayout(arch=SMALL_VIT, registers=1))
    assert resolve(PHOTOS, known=distilled, init="tch_x").net.largest.distilled
    assert places(PHOTOS, known=distilled, init="tch_x", network={"distilled": False}) == [
        ("/network/distilled", "fixed_by_weights")
    ]


@pytest.mark.parametrize(("img_size", "patch_size"), [(64, 64), (1, 1)])
def test_start_weights_of_sizes_that_are_not_trained_here_are_refused(img_size: int, patch_size: int) -> None:
    odd = VitLayout(arch=replace(SMALL_VIT, img_size=max(2, img_size), patch_size=patch_size))
    (item,) = refused(PHOTOS, known=teacher(odd), init="tch_x")
    assert (item.pointer, item.code) == ("/init/teacher", "not_slimmable")
    assert f"patch_size {patch_size}" in item.detail


def test_start_weights_of_very_large_images_start_on_smaller_ones() -> None:
    large = VitLayout(arch=replace(SMALL_VIT, img_size=560, patch_size=14))
    assert resolve(PHOTOS, known=teacher(large), init="tch_x").spec.network.img_size == 518


@pytest.mark.parametrize("layout", [VitLayout(arch=SMALL_VIT, registers=4), VitLayout(arch=SMALL_VIT, pre_norm=True)])
def test_start_weights_without_a_slimmable_form_are_refused_by_name(layout: VitLayout) -> None:
    (item,) = refused(PHOTOS, known=teacher(layout), init="tch_x")
    assert (item.pointer, item.code) == ("/init/teacher", "not_slimmable")
    assert "registers" in item.detail or "pre_norm" in item.detail


@pytest.mark.parametrize(
    ("name", "width", "side", "layer_scale"),
    [
        ("deit_small_distilled_patch16_224.fb_in1k", 384, 224, False),
        ("vit_base_patch14_dinov2.lvd142m", 768, 518, True),
        ("deit3_small_patch16_384", 384, 384, True),
    ],
)
def test_names_of_timm_tell_the_sizes(name: str, width: int, side: int, layer_scale: bool) -> None:
    found = resolve(PHOTOS, init={"timm": name}).net.largest
    assert (found.embed_dim, found.img_size, found.layer_scale) == (width, side, layer_scale)
    assert found.distilled == ("distilled" in name)


def test_names_of_timm_that_tell_no_sizes_are_refused() -> None:
    assert places(PHOTOS, init={"timm": "vit_so400m_patch14_siglip_224"}) == [("/init/timm", "sizes_unknown")]


@pytest.mark.parametrize("field", ["init", "slicing"])
def test_networks_that_are_trained_alone_start_nowhere_and_are_not_cut(field: str) -> None:
    value: Any = {"timm": "deit_small_patch16_224"} if field == "init" else {"qkv": "contiguous"}
    (item,) = refused(PHOTOS, method="separate", **{field: value})
    assert item.pointer.startswith(f"/{field}")


def test_widths_that_are_trained_alone_are_all_that_is_served() -> None:
    alone, shared = resolve(method="separate"), resolve()
    assert alone.served == alone.net.head_dims
    assert shared.served == tuple(range(8, 33))


def test_contiguous_slicing_of_scala_isolates_as_the_paper_does() -> None:
    assert resolve(slicing={"qkv": "contiguous"}).spec.slicing.isolated_activation == "paper"
    assert resolve(method="usnet", slicing={"qkv": "contiguous"}).spec.slicing.isolated_activation == "off"


@pytest.mark.parametrize("dataset", [{"id": "digits", "labels": "ignored"}, "digits"])
def test_widths_are_measured_by_labels(dataset: Any) -> None:
    unlabelled = DIGITS if isinstance(dataset, dict) else replace(DIGITS, labelled=False, classes=())
    pointer = "/dataset/labels" if isinstance(dataset, dict) else "/dataset"
    spec = SlimmableSpec.model_validate({"method": "scala", "dataset": dataset})
    with pytest.raises(ServiceError) as caught:
        resolve_slimmable(spec, unlabelled)
    assert [(item.pointer, item.code) for item in caught.value.errors] == [(pointer, "labels_missing")]


def test_limits_leave_the_widths_that_meet_all_of_them() -> None:
    found = resolve(constraints=[{"metric": "params_m", "max": 0.2}, {"metric": "gmacs", "min": 0.002}])
    assert found.within == tuple(range(17, 22))


@pytest.mark.parametrize(
    ("constraints", "pointers"),
    [
        ([{"metric": "params_m", "max": 1e-6}], ["/constraints/0"]),
        ([{"metric": "params_m", "max": 0.05}, {"metric": "gmacs", "min": 0.007}],
         ["/constraints/0", "/constraints/1"]),
        ([{"metric": "params_m", "min": 0.1778, "max": 0.1779}], ["/constraints/0"]),
    ],
)  # fmt: skip
def test_limits_that_no_width_meets_are_refused_with_the_reachable_range(
    constraints: list[dict[str, Any]], pointers: list[str]
) -> None:
    with pytest.raises(ConstraintUnsatisfiable) as caught:
        resolve(constraints=constraints)
    assert [item.pointer for item in caught.value.errors] == pointers
    assert [reach["metric"] for reach in caught.value.extra["reachable"]] == list(FORMULA_METRICS)


def test_a_limit_on_latency_is_measured_on_the_worker() -> None:
    limits = [{"metric": "latency_ms", "max": 5, "device": "worker"}, {"metric": "params_m", "max": 0.2}]
    found = resolve(constraints=limits)
    assert found.within == tuple(range(8, 22))  # what only a clock can tell is not asked of a formula
    filled = found.spec.constraints[0]
    assert (filled.batch_size, filled.percentile, filled.runtime) == (1, 50, "torch")
    assert resolve_slimmable(found.spec, DIGITS).spec == found.spec


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"constraints": [{"metric": "latency_ms", "max": 5, "device": "dev_1"}]}, "/constraints/0/device"),
        ({"constraints": [{"metric": "latency_ms", "max": 5, "table": {}}]}, "/constraints/0/table"),
        (
            {"objectives": [{"metric": "score", "goal": "max"}, {"metric": "latency_ms", "goal": "min"}]},
            "/objectives/1/metric",
        ),
        (
            {
                "constraints": [{"metric": "latency_ms", "max": 5, "device": "worker"}],
                "objectives": [{"metric": "score", "goal": "max"}, {"metric": "latency_ms", "goal": "min"}],
            },
            "/objectives/1/metric",
        ),
    ],
)
def test_latency_by_a_table_is_refused_where_heads_have_several_widths(fields: dict[str, Any], pointer: str) -> None:
    assert places(**fields) == [(pointer, "not_allowed")]


def test_limits_without_effect_are_told() -> None:
    found = resolve(constraints=[{"metric": "params_m", "min": 0.001, "max": 100}])
    assert [(item.pointer, item.code) for item in found.warnings] == [
        ("/constraints/0/max", "not_binding"),
        ("/constraints/0/min", "not_binding"),
    ]


def continued(trained: ResolvedSlimmable, dataset: DatasetInfo = DIGITS, **fields: Any) -> list[tuple[str, str]]:
    """Where a body that continues a trained network is refused."""
    warm = SupernetInfo(
        reference="sn_x",
        method=trained.spec.method,
        space=trained.net.to_json(),
        dataset=None,
        classes=DIGITS.classes if trained.num_classes else (),
        spec={},
        files={},
        outputs={},
        trained_for={},
    )
    body = {"method": "scala", "dataset": "digits", "warm_start": "sn_x", **fields}
    try:
        resolve_slimmable(SlimmableSpec.model_validate(body), dataset, warm)
    except ServiceError as refusal:
        return [(item.pointer, item.code) for item in refusal.errors]
    return []


FEATURES = {"timm": "vit_small_patch14_dinov2", "kind": "features"}


def test_a_network_is_continued_with_the_head_that_it_has() -> None:
    classifier, headless = resolve(), resolve(teacher=FEATURES)
    assert continued(classifier) == []
    assert continued(headless, teacher=FEATURES) == []
    assert continued(classifier, teacher=FEATURES) == [("/training/cross_entropy", "other_head")]
    assert continued(headless) == [("/training/cross_entropy", "other_head")]


@pytest.mark.parametrize("classes", [tuple("9876543210"), tuple("01234")])
def test_a_head_is_not_continued_on_other_classes(classes: tuple[str, ...]) -> None:
    other = replace(DIGITS, digest="cd" * 32, classes=classes)
    assert continued(resolve(), other) == [("/warm_start/supernet", "other_classes")]
