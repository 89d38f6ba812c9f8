"""Retraining: which way, and the recipe."""

from __future__ import annotations

from models.architecture import Architecture
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import WHOLE_IMAGE
from service.jobs.resolve.recipes import RETRAIN_RECIPE, fill_optim
from service.jobs.spec import RetrainMode, RetrainSpec, SearchSpec


def retrain_mode(spec: SearchSpec, dataset: DatasetInfo) -> RetrainMode:
    """The way asked for; by default ``finetune`` with labels and ``none`` without.

    Raises:
        ValidationFailed: retraining without labels.
    """
    labelled = dataset.labelled and spec.dataset.labels == "auto"
    mode = spec.retrain.mode or ("finetune" if labelled else "none")
    if mode != "none" and not labelled:
        reason = "has no labels" if not dataset.labelled else "is used without its labels (dataset.labels: ignored)"
        raise ValidationFailed(
            f"Dataset {dataset.name!r} {reason}, and retraining with mode {mode!r} needs them.",
            errors=[ErrorItem("/retrain/mode", "labels_missing", f"mode {mode!r} needs labels", ["none"])],
        )
    return mode


def resolve_retrain(
    asked: RetrainSpec, mode: RetrainMode, largest: Architecture, train_images: int, warnings: list[ErrorItem]
) -> RetrainSpec:
    """Fill the recipe.

    Raises:
        ValidationFailed: options that exclude each other.
    """
    crop_scale = asked.crop_scale or WHOLE_IMAGE
    crops = crop_scale[0] < 1
    if crops and asked.max_shift:
        detail = f"found {asked.max_shift:g}, while crop_scale moves the images already"
        raise ValidationFailed.of([ErrorItem("/retrain/max_shift", "excluded_by_crops", detail, 0)])
    max_shift = asked.max_shift if asked.max_shift is not None else 0.0 if crops else 0.125
    filled = asked.model_copy(update={"mode": mode, "max_shift": max_shift, "crop_scale": crop_scale})
    return fill_optim(filled, RETRAIN_RECIPE, largest, train_images, "/retrain", warnings)
