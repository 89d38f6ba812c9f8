"""Defaults of the training stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from models.architecture import Architecture
from service.errors import ErrorItem
from service.jobs.spec import OptimSpec

_Optim = TypeVar("_Optim", bound=OptimSpec)

SMALL_EMBED_DIM = 128
"""Supernets up to this width take the recipe for small networks, which stand a higher rate and smaller batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Defaults of one training for networks of one size.

    Attributes:
        epochs: of the training.
        lr: peak learning rate; at a batch of 256 where ``scaled``.
        scaled: the rate grows linearly with the batch.
        batch: images of a step, at most.
        warmup_fraction: share of all steps.
    """

    epochs: int
    lr: float
    scaled: bool
    batch: int
    warmup_fraction: float


# Small networks: measured on 8-pixel digits.
SMALL_MASKED = Recipe(epochs=100, lr=2e-3, scaled=False, batch=64, warmup_fraction=0.1)

# MAE's rate (He et al. 2022, appendix A) with the 100 epochs that MaskTAS trains.
MASKED = Recipe(epochs=100, lr=1.5e-4, scaled=True, batch=1024, warmup_fraction=0.1)


def is_small(largest: Architecture) -> bool:
    """Whether a supernet takes the recipes for small networks."""
    return largest.embed_dim <= SMALL_EMBED_DIM


def fill_optim(asked: _Optim, recipe: Recipe, train_images: int, pointer: str, warnings: list[ErrorItem]) -> _Optim:
    """Fill epochs, batch, rate and warm-up; a batch larger than the dataset is reduced, and a warning says so."""
    batch = asked.batch_size or min(recipe.batch, train_images)
    if batch > train_images:
        warnings.append(
            ErrorItem(
                f"{pointer}/batch_size",
                "batch_reduced",
                f"batch_size {batch} exceeds the {train_images} training images and was reduced to that number",
            )
        )
        batch = train_images
    lr = asked.lr or (recipe.lr * batch / 256 if recipe.scaled else recipe.lr)
    warmup = recipe.warmup_fraction if asked.warmup_fraction is None else asked.warmup_fraction
    epochs = asked.epochs or recipe.epochs
    return asked.model_copy(update={"batch_size": batch, "lr": lr, "epochs": epochs, "warmup_fraction": warmup})
