"""Retraining: which way, and the recipe.

Two regimes because they answer two questions: fine-tuning shows what the supernet's weights are worth, training from
scratch what the architecture is worth. docs/retraining.md has all defaults as tables, with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.architecture import Architecture
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.recipes import Recipe, is_small
from service.jobs.resolve.supervised import DEIT, SMALL, SupervisedRecipe, contradictions, doubts, fill_supervised
from service.jobs.spec import RecipeName, RetrainMode, RetrainSpec, SearchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainRecipe:
    """Defaults of a retraining."""

    supervised: SupervisedRecipe
    layer_decay: float


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
    name: RecipeName = asked.recipe or ("small" if is_small(largest) else "published")
    recipe = retrain_recipe(name, mode, largest.embed_dim)
    spec = fill_supervised(asked, name, recipe.supervised, largest.img_size, train_images, "/retrain", warnings)
    layer_decay = recipe.layer_decay if spec.layer_decay is None else spec.layer_decay
    filled = spec.model_copy(update={"mode": mode, "layer_decay": layer_decay})
    if items := contradictions(filled, "/retrain"):
        raise ValidationFailed.of(items)
    if mode != "none":
        warnings += _doubts(filled, train_images)
    return filled


def retrain_recipe(name: RecipeName, mode: RetrainMode, width: int) -> RetrainRecipe:
    """Defaults for a supernet of this width; mode ``none`` is filled as fine-tuning, which it does not use."""
    scratch = mode == "scratch"
    if name == "small":
        return RetrainRecipe(supervised=SMALL, layer_decay=1.0 if scratch else 0.75)
    if scratch:
        return RetrainRecipe(supervised=DEIT, layer_decay=1.0)
    # MaskTAS: 5e-3 at a batch of 2048, 100 epochs. The rest is MAE's fine-tuning, milder for narrow networks.
    finetune = SupervisedRecipe(
        optim=Recipe(epochs=100, lr=6.25e-4, scaled=True, batch=1024, warmup_fraction=5 / 100),
        min_lr=1e-6,
        drop_path=0.1 if width >= _SMALL_WIDTH else 0.0,
        randaugment_ops=2,
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
    )
    return RetrainRecipe(supervised=finetune, layer_decay=_layer_decay(width))


# Widths of ViT-S (384), ViT-B (768) and ViT-L (1024), with what searches around them reach below.
_SMALL_WIDTH = 256
_BASE_WIDTH = 512
_LARGE_WIDTH = 1024


def _layer_decay(width: int) -> float:
    if width >= _LARGE_WIDTH:
        return 0.75
    if width >= _BASE_WIDTH:
        return 0.65
    return 0.75 if width >= _SMALL_WIDTH else 0.8


def _doubts(spec: RetrainSpec, train_images: int) -> list[ErrorItem]:
    """What a filled spec may be sorry for."""
    found = doubts(spec, train_images, spec.top_k, "/retrain")
    if spec.mode == "scratch" and spec.layer_decay != 1:
        detail = f"layer_decay {spec.layer_decay:g} holds back the lower blocks, which start at random here"
        found.append(ErrorItem("/retrain/layer_decay", "layer_decay_from_scratch", detail, 1))
    return found
