"""Retraining: which way, and the recipe.

Two regimes because they answer two questions: fine-tuning shows what the supernet's weights are worth, training from
scratch what the architecture is worth. docs/retraining.md has all defaults as tables, with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.architecture import Architecture
from search.presets import MICRO_MAX_IMG_SIZE
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import WHOLE_IMAGE
from service.jobs.resolve.recipes import Recipe, fill_optim, is_small
from service.jobs.spec import RecipeName, RetrainMode, RetrainSpec, SearchSpec

SHIFT_MIN_IMG_SIZE = 16
"""Smaller images are not moved by default: digits of 8 pixels lose strokes, and 1 to 2 points of accuracy."""

_SHIFT = 0.125
_PUBLISHED_CROP = (0.08, 1.0)

_SHORT = 30
"""Strong augmentation slows training down; with fewer epochs than this it costs more than it brings."""

_MANY_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainRecipe:
    """Defaults of a retraining; the names are those of the spec."""

    optim: Recipe
    min_lr: float = 0.0
    layer_decay: float
    drop_path: float = 0.0
    repeats: int = 1
    randaugment_ops: int = 0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


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
    spec = fill_optim(asked, recipe.optim, train_images, "/retrain", warnings)
    assert spec.lr is not None, "just filled"
    assert spec.batch_size is not None, "just filled"
    mixable = spec.batch_size > 1
    defaults = {
        "min_lr": min(recipe.min_lr, spec.lr),
        "layer_decay": recipe.layer_decay,
        "drop_path": recipe.drop_path,
        "repeats": min(recipe.repeats, spec.batch_size),
        "randaugment_ops": recipe.randaugment_ops,
        "erasing": recipe.erasing,
        "mixup": recipe.mixup if mixable else 0.0,
        "cutmix": recipe.cutmix if mixable else 0.0,
        **_places(spec, name, largest.img_size),
    }
    chosen = {field: value for field, value in defaults.items() if getattr(spec, field) is None}
    filled = spec.model_copy(update={"mode": mode, "recipe": name, **chosen})
    _refuse_contradictions(filled)
    if mode != "none":
        warnings += _doubts(filled, train_images)
    return filled


def retrain_recipe(name: RecipeName, mode: RetrainMode, width: int) -> RetrainRecipe:
    """Defaults for a supernet of this width; mode ``none`` is filled as fine-tuning, which it does not use."""
    scratch = mode == "scratch"
    if name == "small":
        # Measured on 8-pixel digits and on CIFAR-10 at 16 pixels: docs/retraining.md.
        optim = Recipe(epochs=60, lr=2e-3, scaled=False, batch=64, warmup_fraction=0.1)
        return RetrainRecipe(optim=optim, layer_decay=1.0 if scratch else 0.75)
    if scratch:  # DeiT's recipe as AutoFormer trains by it, 5e-4 at a batch of 512
        return RetrainRecipe(
            optim=Recipe(epochs=300, lr=2.5e-4, scaled=True, batch=1024, warmup_fraction=20 / 300),
            min_lr=1e-5,
            layer_decay=1.0,
            drop_path=0.1,
            repeats=3,
            randaugment_ops=2,
            erasing=0.25,
            mixup=0.8,
            cutmix=1.0,
        )
    # MaskTAS: 5e-3 at a batch of 2048, 100 epochs. The rest is MAE's fine-tuning, milder for narrow networks.
    return RetrainRecipe(
        optim=Recipe(epochs=100, lr=6.25e-4, scaled=True, batch=1024, warmup_fraction=5 / 100),
        min_lr=1e-6,
        layer_decay=_layer_decay(width),
        drop_path=0.1 if width >= _SMALL_WIDTH else 0.0,
        randaugment_ops=2,
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
    )


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


def _places(spec: RetrainSpec, name: RecipeName, img_size: int) -> dict[str, object]:
    """Defaults of what moves images: crops and mirroring for photographs, a translation or nothing for small images.

    Small images often show digits and text, which mirroring makes wrong.
    """
    photos = name == "published" and img_size > MICRO_MAX_IMG_SIZE
    crop = spec.crop_scale or (_PUBLISHED_CROP if photos and not spec.max_shift else WHOLE_IMAGE)
    moved = crop != WHOLE_IMAGE or img_size < SHIFT_MIN_IMG_SIZE
    return {"crop_scale": crop, "horizontal_flip": photos, "max_shift": 0.0 if moved else _SHIFT}


def _refuse_contradictions(spec: RetrainSpec) -> None:
    """Refuse fields of a filled spec that exclude each other."""
    assert spec.lr is not None, "filled before"
    assert spec.batch_size is not None, "filled before"
    assert spec.min_lr is not None, "filled before"
    assert spec.repeats is not None, "filled before"
    items = []
    if spec.max_shift and spec.crop_scale != WHOLE_IMAGE:
        detail = f"found {spec.max_shift:g}, while crop_scale moves the images already"
        items.append(ErrorItem("/retrain/max_shift", "excluded_by_crops", detail, 0))
    if spec.min_lr > spec.lr:
        detail = f"the lowest rate {spec.min_lr:g} is above the peak, lr {spec.lr:g}"
        items.append(ErrorItem("/retrain/min_lr", "above_lr", detail, {"max": spec.lr}))
    if spec.repeats > spec.batch_size:
        detail = f"found {spec.repeats} copies of an image in a batch of {spec.batch_size}"
        items.append(ErrorItem("/retrain/repeats", "above_batch_size", detail, {"max": spec.batch_size}))
    if spec.batch_size == 1:
        for field in ("mixup", "cutmix"):
            if getattr(spec, field):
                detail = "a batch of one image has nothing to mix it with"
                items.append(ErrorItem(f"/retrain/{field}", "nothing_to_mix", detail, 0))
    if items:
        raise ValidationFailed.of(items)


def _doubts(spec: RetrainSpec, train_images: int) -> list[ErrorItem]:
    """What a filled spec may be sorry for."""
    assert spec.epochs is not None, "filled before"
    assert spec.batch_size is not None, "filled before"
    doubts = []
    strong = [field for field in ("mixup", "cutmix", "randaugment_ops", "erasing", "drop_path") if getattr(spec, field)]
    if strong and spec.epochs < _SHORT:
        detail = f"{', '.join(strong)} slow training down, and {spec.epochs} epochs are short for it"
        doubts.append(ErrorItem("/retrain/epochs", "short_for_augmentation", detail))
    if spec.mode == "scratch" and spec.layer_decay != 1:
        detail = f"layer_decay {spec.layer_decay:g} holds back the lower blocks, which start at random here"
        doubts.append(ErrorItem("/retrain/layer_decay", "layer_decay_from_scratch", detail, 1))
    steps = spec.top_k * spec.epochs * (train_images // spec.batch_size)
    if steps > _MANY_STEPS:
        detail = f"top_k {spec.top_k} trainings of {spec.epochs} epochs make {steps:,} steps, which may take very long"
        doubts.append(ErrorItem("/retrain/epochs", "slow", detail))
    return doubts
