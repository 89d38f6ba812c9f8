"""How the widths of a slimmable network are trained: the recipe, and what each method leaves open or fixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from models.architecture import Architecture
from models.slicing import QkvSlicing
from models.slimmable import Slimmable
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.recipes import Recipe, is_small
from service.jobs.resolve.supervised import DEIT, SMALL, SupervisedRecipe, contradictions, doubts, fill_supervised
from service.jobs.spec import AfterEpochs, RecipeName, SlimmableSpec, SlimmableTrainingSpec, SupervisedSpec

_POINTER = "/training"

_BASE_WIDTH = 512
"""From here on the recipe is that of ViT-B, below that of ViT-S."""

_SMALL_EPOCHS, _BASE_EPOCHS = 100, 300

_PER_STEP = 4
"""Networks that a step trains at most: the whole one, the smallest, and two between."""

_OFF_GRID: Mapping[str, float] = MappingProxyType({"off_grid": 0.25, "off_grid_smallest": 0.25})
"""What keeps the widths between those of a coarse grid from dipping (docs/decisions/0025-widths-off-the-grid.md)."""

_ON_GRID: Mapping[str, float] = MappingProxyType(dict.fromkeys(_OFF_GRID, 0.0))

_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "scala": {
            "stable_sampling": "paper",
            "teacher_of_subnets": "next_larger",
            "kd_weight": 1.0,
            "early_distillation_after_epochs": 0,
            "full_warm_epochs": 0,
            "full_warm_factor": 2.0,
        },
        "usnet": {
            **_ON_GRID,
            "teacher_of_subnets": "full",
            "noise_calibration": False,
            "cross_entropy": True,
            "kd_weight": 1.0,
            "early_distillation_after_epochs": 0,
            "full_warm_epochs": 0,
            "full_warm_factor": 2.0,
        },
        "separate": {},
    }
)

_OWN = tuple(name for name in SlimmableTrainingSpec.model_fields if name not in SupervisedSpec.model_fields)
"""What is not of the recipe."""

_FIXED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "scala": {},
        "usnet": {
            "stable_sampling": None,
            "teacher_of_subnets": "full",
            "noise_calibration": False,
            "cross_entropy": True,
        },
        "separate": dict.fromkeys(_OWN),
    }
)
"""What a method does in one way only; None: it has no such thing."""


def resolve_training(
    spec: SlimmableSpec, net: Slimmable, train_images: int, warnings: list[ErrorItem]
) -> SlimmableTrainingSpec:
    """Fill recipe and method; whether a teacher's features are learnt follows from its filled ``kind``.

    Args:
        spec: with a filled teacher.
        net: the slimmable network.
        train_images: images that are trained on.
        warnings: gets what was reduced, and doubts.

    Raises:
        ValidationFailed: options that exclude each other or that the method does not have.
    """
    asked, method = spec.training, spec.method
    defaults = dict(_DEFAULTS[method])
    if method == "scala":
        features = spec.teacher is not None and spec.teacher.kind == "features"
        cross_entropy = not features if asked.cross_entropy is None else asked.cross_entropy
        defaults |= {"cross_entropy": cross_entropy, "noise_calibration": cross_entropy}
        # With contiguous rows no training at few widths helps the others, and on a full grid there are none.
        has_gaps = net.qkv is QkvSlicing.HEAD_ALIGNED and len(net.head_dims) < len(net.served)
        defaults |= _OFF_GRID if has_gaps else _ON_GRID
    items = list(_not_of_method(asked, method))
    own = {name: value for name, value in defaults.items() if getattr(asked, name) is None}
    name: RecipeName = asked.recipe or ("small" if is_small(net.largest) else "published")
    recipe = _recipe(name, net.largest, separate=method == "separate")
    filled = asked.model_copy(update=own)
    filled = fill_supervised(filled, name, recipe, net.largest.img_size, train_images, _POINTER, warnings)
    items += contradictions(filled, _POINTER)
    if method != "separate" and not items:
        items += [*_idle_epochs(filled), *_feature_items(spec, filled)]
    if items:
        raise ValidationFailed.of(items)
    trainings = len(net.head_dims) if method == "separate" else min(_PER_STEP, len(net.head_dims))
    warnings += doubts(filled, train_images, trainings, _POINTER)
    return filled


def fill_teacher_training(
    asked: SupervisedSpec, network: Architecture, train_images: int, warnings: list[ErrorItem]
) -> SupervisedSpec:
    """Fill the recipe of a teacher that is trained here, as a width of its own would be.

    Raises:
        ValidationFailed: options that exclude each other.
    """
    pointer = "/teacher/train"
    name: RecipeName = asked.recipe or ("small" if is_small(network) else "published")
    recipe = _recipe(name, network, separate=True)
    filled = fill_supervised(asked, name, recipe, network.img_size, train_images, pointer, warnings)
    if items := contradictions(filled, pointer):
        raise ValidationFailed.of(items)
    warnings += doubts(filled, train_images, 1, pointer)
    return filled


def _recipe(name: RecipeName, network: Architecture, *, separate: bool) -> SupervisedRecipe:
    """Scala's published recipes (Zhang et al. 2024, section 4.1, and released scripts); of one network DeiT's."""
    if name == "small":
        return SMALL
    base = network.embed_dim >= _BASE_WIDTH
    epochs = _BASE_EPOCHS if base else _SMALL_EPOCHS
    if separate:
        return replace(DEIT, optim=replace(DEIT.optim, epochs=epochs))
    return SupervisedRecipe(
        # 1e-3 at a batch of 512, and 2e-3 at 512 that the script scales to its batch of 1024.
        optim=Recipe(
            epochs=epochs,
            lr=5e-4 if base else 1e-3,
            scaled=True,
            batch=1024,
            warmup_fraction=5 / 300 if base else 3 / 100,
        ),
        min_lr=1e-5,
        drop_path=0.1,
        randaugment_ops=2,
        randaugment_magnitude=4.0 if base else 1.0,
        color_jitter=0.3,
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
    )


def _not_of_method(asked: SlimmableTrainingSpec, method: str) -> Iterator[ErrorItem]:
    for name, fixed in _FIXED[method].items():
        value = getattr(asked, name)
        if value is None or value == fixed:
            continue
        detail = f"found {_shown(value)}, which method {method} has not"
        if fixed is not None:
            detail = f"found {_shown(value)}, while method {method} has {_shown(fixed)}"
        yield ErrorItem(f"{_POINTER}/{name}", "not_with_method", detail, [fixed])


def _shown(value: object) -> str:
    if isinstance(value, AfterEpochs):
        return f"after {value.after_epochs} epochs"
    return str(value).lower() if isinstance(value, bool) else str(value)


def labels_after(training: SlimmableTrainingSpec) -> int | None:
    """Epoch from which widths learn from labels, of a filled spec; None: never."""
    match training.noise_calibration:
        case AfterEpochs(after_epochs=epochs):
            return epochs
        case True:
            return 0
        case _:
            return None


def _idle_epochs(filled: SlimmableTrainingSpec) -> Iterator[ErrorItem]:
    """Refuse schedules that never begin, or under which widths have nothing to learn."""
    assert filled.epochs is not None, "filled before"
    early, warm = filled.early_distillation_after_epochs or 0, filled.full_warm_epochs or 0
    labels = labels_after(filled)
    starts = {
        "full_warm_epochs": warm,
        "early_distillation_after_epochs": early,
        "noise_calibration/after_epochs": labels or 0,
    }
    late = [name for name, epoch in starts.items() if epoch >= filled.epochs]
    for name in late:
        detail = f"found {starts[name]} of {filled.epochs} epochs, so that nothing would follow"
        yield ErrorItem(f"{_POINTER}/{name}", "never_begins", detail, {"max": filled.epochs - 1})
    distils = None if filled.teacher_of_subnets == "none" else early
    first = min((epoch for epoch in (distils, labels) if epoch is not None), default=None)
    if late or (first is not None and first <= warm):
        return
    when = "" if first is None else f" in epochs {warm} to {first - 1}"
    detail = f"widths would learn{when} neither from a larger network nor from labels"
    yield ErrorItem(f"{_POINTER}/teacher_of_subnets", "nothing_to_learn", detail, ["next_larger", "full"])
    yield ErrorItem(f"{_POINTER}/noise_calibration", "nothing_to_learn", detail, [True])
    if early:
        yield ErrorItem(f"{_POINTER}/early_distillation_after_epochs", "nothing_to_learn", detail, [0])


def _feature_items(spec: SlimmableSpec, filled: SlimmableTrainingSpec) -> Iterator[ErrorItem]:
    """Labels and features exclude each other: a network that matches features has no head."""
    kind = spec.teacher.kind if spec.teacher is not None else None
    if filled.cross_entropy:
        if kind == "features":
            detail = "a teacher of kind features is matched without labels"
            yield ErrorItem(f"{_POINTER}/cross_entropy", "not_with_features", detail, [False])
            yield ErrorItem("/teacher/kind", "not_with_labels", "labels are learnt beside logits only", ["logits"])
        return
    if kind != "features":
        detail = "without labels there is nothing to learn but the features of a teacher"
        yield ErrorItem("/teacher", "features_missing", detail, "a teacher of kind features")
    if filled.noise_calibration:
        detail = "noise calibration is the loss of labels, and cross_entropy is false"
        yield ErrorItem(f"{_POINTER}/noise_calibration", "not_with_features", detail, [False])
    if spec.network.distilled:
        detail = "a distillation token learns a class, and cross_entropy is false"
        yield ErrorItem("/network/distilled", "not_with_features", detail, [False])
