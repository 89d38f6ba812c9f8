"""Supervised training: the recipe that retraining, slimmable networks and supervised teachers share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.jobs.spec.base import CropScale, DecayRate, OptimSpec

RecipeName = Literal["published", "small"]

Probability = Annotated[float, Field(ge=0, le=1)]
BetaParameter = Annotated[float, Field(ge=0, le=100)]


class SupervisedSpec(OptimSpec):
    """How images are changed and mixed, and how weights are regularised, when a network learns from labels."""

    recipe: RecipeName | None = Field(
        None,
        description="Where the defaults of all other fields come from: the `published` recipes of Vision Transformers, "
        "or a mild one for `small` networks. Default: small for networks up to 128 wide.",
    )
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), strict=False)
    min_lr: float | None = Field(None, ge=0, le=10, description="Learning rate that the cosine ends at, absolute.")
    drop_path: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Stochastic depth: probability that the last block is skipped; it rises linearly from 0 for the "
        "first one.",
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    repeats: int | None = Field(
        None, ge=1, le=16, description="Repeated augmentation: copies of an image in a batch, each changed differently."
    )
    max_shift: float | None = Field(
        None, ge=0, le=0.5, description="Random translation, as a share of the image side; 0 with crops."
    )
    crop_scale: CropScale | None = Field(
        None,
        description="Each image is a random box of it, with least and largest share of the area, in place of a "
        "translation; [1, 1]: whole images.",
    )
    horizontal_flip: bool | None = Field(
        None,
        description="Mirror at random; wrong for digits and text, right for photos. Default: true in the published "
        "recipe for images above 64 pixels, else false.",
    )
    randaugment_ops: int | None = Field(
        None, ge=0, le=8, description="RandAugment: operations on each image, one after the other; 0: none."
    )
    randaugment_magnitude: float | None = Field(
        None, ge=0, le=10, description="RandAugment: strength of the operations."
    )
    randaugment_std: float = Field(0.5, ge=0, le=10, description="RandAugment: spread of the strength.")
    color_jitter: Probability | None = Field(
        None, description="Brightness, contrast and saturation times random factors, up to this far from 1."
    )
    erasing: Probability | None = Field(None, description="Probability that a box of an image is replaced by noise.")
    mixup: BetaParameter | None = Field(
        None, description="Mixup: parameter of the beta distribution of the shares; 0: none."
    )
    cutmix: BetaParameter | None = Field(
        None, description="CutMix: parameter of the beta distribution of the areas; 0: none."
    )
    mix_probability: Probability = Field(1.0, description="Probability that a batch is mixed, by mixup or CutMix.")
    cutmix_share: Probability = Field(
        0.5, description="Share of the mixed batches that take CutMix, where mixup and CutMix are both on."
    )
