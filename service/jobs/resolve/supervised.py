"""Supervised recipes: their defaults, and fields that exclude each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from search.presets import MICRO_MAX_IMG_SIZE
from service.errors import ErrorItem
from service.jobs.resolve.masked import WHOLE_IMAGE
from service.jobs.resolve.recipes import Recipe, fill_optim
from service.jobs.spec import RecipeName, SupervisedSpec

_Supervised = TypeVar("_Supervised", bound=SupervisedSpec)

SHIFT_MIN_IMG_SIZE = 16
"""Smaller images are not moved by default: digits of 8 pixels lose strokes, and 1 to 2 points of accuracy."""

_SHIFT = 0.125
_PUBLISHED_CROP = (0.08, 1.0)

_SHORT = 30
"""Strong augmentation slows training down; with fewer epochs than this it costs more than it brings."""

_MANY_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRecipe:
    """Defaults of a supervised training; the names are those of the spec."""

    optim: Recipe
    min_lr: float = 0.0
    drop_path: float = 0.0
    repeats: int = 1
    randaugment_ops: int = 0
    randaugment_magnitude: float = 9.0
    color_jitter: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0


SMALL = SupervisedRecipe(optim=Recipe(epochs=60, lr=2e-3, scaled=False, batch=64, warmup_fraction=0.1))
"""Measured on 8-pixel digits and on CIFAR-10 at 16 pixels: docs/retraining.md."""

DEIT = SupervisedRecipe(
    optim=Recipe(epochs=300, lr=2.5e-4, scaled=True, batch=1024, warmup_fraction=20 / 300),
    min_lr=1e-5,
    drop_path=0.1,
    repeats=3,
    randaugment_ops=2,
    erasing=0.25,
    mixup=0.8,
    cutmix=1.0,
)
"""DeiT's recipe as AutoFormer trains by it, 5e-4 at a batch of 512."""


def fill_supervised(
    asked: _Supervised,
    name: RecipeName,
    recipe: SupervisedRecipe,
    img_size: int,
    train_images: int,
    pointer: str,
    warnings: list[ErrorItem],
) -> _Supervised:
    """Fill every open field of a recipe; options that exclude each other are left to :func:`contradictions`.

    Args:
        asked: by the user.
        name: of the recipe.
        recipe: the defaults.
        img_size: side of the images in pixels.
        train_images: images that are trained on.
        pointer: of the part that is filled.
        warnings: gets what was reduced.
    """
    spec = fill_optim(asked, recipe.optim, train_images, pointer, warnings)
    assert spec.lr is not None, "just filled"
    assert spec.batch_size is not None, "just filled"
    mixable = spec.batch_size > 1
    defaults = {
        "min_lr": min(recipe.min_lr, spec.lr),
        "drop_path": recipe.drop_path,
        "repeats": min(recipe.repeats, spec.batch_size),
        "randaugment_ops": recipe.randaugment_ops,
        "randaugment_magnitude": recipe.randaugment_magnitude,
        "color_jitter": recipe.color_jitter,
        "erasing": recipe.erasing,
        "mixup": recipe.mixup if mixable else 0.0,
        "cutmix": recipe.cutmix if mixable else 0.0,
        **_places(spec, name, img_size),
    }
    chosen = {field: value for field, value in defaults.items() if getattr(spec, field) is None}
    return spec.model_copy(update={"recipe": name, **chosen})


def _places(spec: SupervisedSpec, name: RecipeName, img_size: int) -> dict[str, object]:
    """Defaults of what moves images: crops and mirroring for photographs, a translation or nothing for small images.

    Small images often show digits and text, which mirroring makes wrong.
    """
    photos = name == "published" and img_size > MICRO_MAX_IMG_SIZE
    crop = spec.crop_scale or (_PUBLISHED_CROP if photos and not spec.max_shift else WHOLE_IMAGE)
    moved = crop != WHOLE_IMAGE or img_size < SHIFT_MIN_IMG_SIZE
    return {"crop_scale": crop, "horizontal_flip": photos, "max_shift": 0.0 if moved else _SHIFT}


def contradictions(spec: SupervisedSpec, pointer: str) -> list[ErrorItem]:
    """Fields of a filled recipe that exclude each other."""
    assert spec.lr is not None, "filled before"
    assert spec.batch_size is not None, "filled before"
    assert spec.min_lr is not None, "filled before"
    assert spec.repeats is not None, "filled before"
    items: list[ErrorItem] = []
    if spec.max_shift and spec.crop_scale != WHOLE_IMAGE:
        detail = f"found {spec.max_shift:g}, while crop_scale moves the images already"
        items.append(ErrorItem(f"{pointer}/max_shift", "excluded_by_crops", detail, 0))
    if spec.min_lr > spec.lr:
        detail = f"the lowest rate {spec.min_lr:g} is above the peak, lr {spec.lr:g}"
        items.append(ErrorItem(f"{pointer}/min_lr", "above_lr", detail, {"max": spec.lr}))
    if spec.repeats > spec.batch_size:
        detail = f"found {spec.repeats} copies of an image in a batch of {spec.batch_size}"
        items.append(ErrorItem(f"{pointer}/repeats", "above_batch_size", detail, {"max": spec.batch_size}))
    if spec.batch_size == 1:
        for field in ("mixup", "cutmix"):
            if getattr(spec, field):
                detail = "a batch of one image has nothing to mix it with"
                items.append(ErrorItem(f"{pointer}/{field}", "nothing_to_mix", detail, 0))
    return items


def doubts(spec: SupervisedSpec, train_images: int, trainings: int, pointer: str) -> list[ErrorItem]:
    """What a filled recipe may be sorry for; ``trainings`` is how many networks are trained by it."""
    assert spec.epochs is not None, "filled before"
    assert spec.batch_size is not None, "filled before"
    found = []
    strong = [field for field in ("mixup", "cutmix", "randaugment_ops", "erasing", "drop_path") if getattr(spec, field)]
    if strong and spec.epochs < _SHORT:
        detail = f"{', '.join(strong)} slow training down, and {spec.epochs} epochs are short for it"
        found.append(ErrorItem(f"{pointer}/epochs", "short_for_augmentation", detail))
    steps = trainings * spec.epochs * (train_images // spec.batch_size)
    if steps > _MANY_STEPS:
        detail = f"{trainings} trainings of {spec.epochs} epochs make {steps:,} steps, which may take very long"
        found.append(ErrorItem(f"{pointer}/epochs", "slow", detail))
    return found
