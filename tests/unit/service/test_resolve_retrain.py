"""What a body leaves open of its retraining is filled; what excludes itself is refused with a pointer."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ValidationFailed
from service.jobs.resolve import Resolved, resolve_search
from service.jobs.spec import RetrainSpec, SearchSpec

DIGITS = BUILTINS["digits"]
PHOTOS = replace(DIGITS, name="photos", images=100_000, channels=3, min_side=300)


def resolve(dataset: DatasetInfo = DIGITS, **retrain: Any) -> Resolved:
    return resolve_search(
        SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "retrain": retrain}), dataset
    )


def filled(dataset: DatasetInfo = DIGITS, **retrain: Any) -> RetrainSpec:
    return resolve(dataset, **retrain).spec.retrain


def test_crops_take_the_place_of_the_translation() -> None:
    spec = filled(crop_scale=[0.2, 1.0])
    assert (spec.crop_scale, spec.max_shift) == ((0.2, 1.0), 0.0)
    assert filled().crop_scale == (1.0, 1.0)


def test_crops_and_translation_together_are_refused() -> None:
    with pytest.raises(ValidationFailed) as caught:
        resolve(crop_scale=[0.2, 1.0], max_shift=0.1)
    assert [item.pointer for item in caught.value.errors] == ["/retrain/max_shift"]


@pytest.mark.parametrize("scale", [[0.0, 1.0], [0.8, 0.2], [0.5, 1.5], [0.5]])
def test_impossible_crops_are_refused_at_their_field(scale: list[float]) -> None:
    with pytest.raises(ValidationError) as caught:
        resolve(crop_scale=scale)
    assert {error["loc"][:2] for error in caught.value.errors()} == {("retrain", "crop_scale")}


def test_a_filled_recipe_has_no_open_field_and_resolves_to_itself() -> None:
    for mode in ("finetune", "scratch"):
        for recipe in ("published", "small", None):
            spec = filled(PHOTOS, mode=mode, recipe=recipe)
            assert None not in [value for field, value in spec if field != "clip_grad"]
            assert filled(PHOTOS, **spec.model_dump(mode="json")) == spec


def chosen(spec: RetrainSpec, *fields: str) -> list[Any]:
    return [getattr(spec, field) for field in fields]


def test_published_fine_tuning() -> None:
    spec = filled(PHOTOS, batch_size=2048)
    assert chosen(spec, "mode", "recipe", "epochs", "weight_decay") == ["finetune", "published", 100, 0.05]
    assert spec.lr == pytest.approx(5e-3)  # MaskTAS at this batch
    assert spec.warmup_fraction == pytest.approx(5 / 100)
    assert chosen(spec, "min_lr", "betas", "label_smoothing", "repeats") == [1e-6, (0.9, 0.999), 0.1, 1]
    assert chosen(spec, "randaugment_ops", "randaugment_magnitude", "randaugment_std") == [2, 9.0, 0.5]
    assert chosen(spec, "mixup", "cutmix", "cutmix_share", "erasing") == [0.8, 1.0, 0.5, 0.25]
    assert chosen(spec, "crop_scale", "horizontal_flip", "max_shift") == [(0.08, 1.0), True, 0.0]


def test_published_training_from_scratch() -> None:
    spec = filled(PHOTOS, mode="scratch", batch_size=1024)
    assert chosen(spec, "epochs", "weight_decay", "betas", "label_smoothing") == [300, 0.05, (0.9, 0.999), 0.1]
    assert spec.lr == pytest.approx(1e-3)  # AutoFormer at this batch
    assert spec.warmup_fraction == pytest.approx(20 / 300)
    assert chosen(spec, "min_lr", "layer_decay", "drop_path", "repeats") == [1e-5, 1.0, 0.1, 3]
    assert chosen(spec, "randaugment_ops", "mixup", "cutmix", "erasing") == [2, 0.8, 1.0, 0.25]


@pytest.mark.parametrize(
    ("space", "layer_decay", "drop_path"),
    [("micro", 0.75, 0.0), ("masktas-tiny", 0.8, 0.0), ("masktas-small", 0.75, 0.1), ("masktas-base", 0.65, 0.1)],
)
def test_fine_tuning_is_milder_for_narrow_networks(space: str, layer_decay: float, drop_path: float) -> None:
    body = {"method": "masktas", "dataset": "digits", "space": space}
    spec = resolve_search(SearchSpec.model_validate(body), PHOTOS).spec.retrain
    assert (spec.layer_decay, spec.drop_path) == (layer_decay, drop_path)


@pytest.mark.parametrize(("min_side", "max_shift"), [(8, 0.0), (15, 0.0), (16, 0.125), (64, 0.125)])
@pytest.mark.parametrize("mode", ["finetune", "scratch"])
def test_small_networks_take_the_mild_recipe(mode: str, min_side: int, max_shift: float) -> None:
    spec = filled(replace(DIGITS, min_side=min_side), mode=mode)
    assert spec.recipe == "small"
    assert spec.max_shift == max_shift
    assert spec.horizontal_flip is False
    off = ("min_lr", "drop_path", "randaugment_ops", "color_jitter", "erasing", "mixup", "cutmix")
    assert chosen(spec, *off) == [0] * len(off)
    assert spec.layer_decay == (1.0 if mode == "scratch" else 0.75)


def test_a_recipe_can_be_named_whatever_the_size_of_the_networks() -> None:
    assert chosen(filled(recipe="published"), "epochs", "mixup") == [100, 0.8]
    assert chosen(filled(PHOTOS, recipe="small"), "epochs", "mixup") == [60, 0.0]


def test_published_recipe_neither_crops_nor_mirrors_small_images() -> None:
    spec = filled(replace(DIGITS, min_side=32), recipe="published")
    assert chosen(spec, "crop_scale", "horizontal_flip", "max_shift") == [(1.0, 1.0), False, 0.125]


def test_what_is_asked_stays() -> None:
    asked = {"layer_decay": 0.9, "drop_path": 0.3, "repeats": 2, "randaugment_ops": 0, "mixup": 0.2, "erasing": 0.0}
    spec = filled(PHOTOS, mode="scratch", warmup_fraction=0.0, max_shift=0.1, min_lr=0.0, **asked)
    assert chosen(spec, *asked) == list(asked.values())
    assert chosen(spec, "warmup_fraction", "max_shift", "crop_scale", "min_lr") == [0.0, 0.1, (1.0, 1.0), 0.0]


def test_the_floor_stays_below_a_low_rate() -> None:
    assert filled(PHOTOS, lr=1e-7).min_lr == 1e-7


@pytest.mark.parametrize(
    ("retrain", "pointers"),
    [
        ({"lr": 1e-4, "min_lr": 1e-3}, ["/retrain/min_lr"]),
        ({"batch_size": 2, "repeats": 3}, ["/retrain/repeats"]),
        ({"batch_size": 1, "mixup": 0.8, "cutmix": 1.0}, ["/retrain/mixup", "/retrain/cutmix"]),
    ],
)
def test_contradictions_are_refused_at_their_field(retrain: dict[str, Any], pointers: list[str]) -> None:
    with pytest.raises(ValidationFailed) as caught:
        resolve(**retrain)
    assert [item.pointer for item in caught.value.errors] == pointers


def test_a_batch_of_one_image_is_not_mixed_by_default() -> None:
    assert chosen(filled(PHOTOS, batch_size=1), "mixup", "cutmix") == [0.0, 0.0]


@pytest.mark.parametrize(
    ("retrain", "code"),
    [
        ({"recipe": "published", "epochs": 10}, "short_for_augmentation"),
        ({"mode": "scratch", "layer_decay": 0.75}, "layer_decay_from_scratch"),
        ({"epochs": 20_000, "batch_size": 1}, "slow"),
    ],
)
def test_doubtful_recipes_are_warned_of(retrain: dict[str, Any], code: str) -> None:
    assert code in [warning.code for warning in resolve(**retrain).warnings]


def test_usual_recipes_are_not_warned_of() -> None:
    assert resolve().warnings == resolve(mode="scratch").warnings == resolve(PHOTOS).warnings == ()
