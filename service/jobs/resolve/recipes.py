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


@dataclass(frozen=True, slots=True)
class Recipe:
    """Defaults of one training stage for small (toy to CIFAR size) and for ordinary networks."""

    small_epochs: int
    small_lr: float
    epochs: int
    lr_per_256: float  # absolute rate at a batch of 256, scaled linearly with the batch


# Ordinary networks: the masked recipe is MAE's rate (1.5e-4 per 256) with the 100 epochs that MaskTAS trains;
# fine-tuning is MaskTAS's 5e-3 at a batch of 2048, i.e. 6.25e-4 per 256. Small networks: measured on 8-pixel digits.
MASKED_RECIPE = Recipe(small_epochs=100, small_lr=2e-3, epochs=100, lr_per_256=1.5e-4)


RETRAIN_RECIPE = Recipe(small_epochs=60, small_lr=2e-3, epochs=100, lr_per_256=6.25e-4)


_MAX_BATCH = 1024


_SMALL_BATCH = 64


def fill_optim(
    asked: _Optim, recipe: Recipe, largest: Architecture, train_images: int, pointer: str, warnings: list[ErrorItem]
) -> _Optim:
    """Fill epochs, batch and rate; a batch larger than the dataset is reduced, and a warning says so."""
    small = largest.embed_dim <= SMALL_EMBED_DIM
    batch = asked.batch_size or min(_SMALL_BATCH if small else _MAX_BATCH, train_images)
    if batch > train_images:
        warnings.append(
            ErrorItem(
                f"{pointer}/batch_size",
                "batch_reduced",
                f"batch_size {batch} exceeds the {train_images} training images and was reduced to that number",
            )
        )
        batch = train_images
    lr = asked.lr or (recipe.small_lr if small else recipe.lr_per_256 * batch / 256)
    epochs = asked.epochs or (recipe.small_epochs if small else recipe.epochs)
    return asked.model_copy(update={"batch_size": batch, "lr": lr, "epochs": epochs})
