"""Masked pretraining: the teacher's and the supernet's."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from service.jobs.spec.base import CropScale, DecayRate, OptimSpec, Spec


class DecoderSpec(Spec):
    """The masked autoencoder's decoder; small ones suffice since only the encoder is kept."""

    embed_dim: int = Field(ge=8, le=2048)
    depth: int = Field(ge=1, le=32)
    num_heads: int = Field(ge=1, le=64)


class MaskedSpec(OptimSpec):
    """What teacher and supernet pretraining share: masking and reconstruction (He et al. 2022, MAE)."""

    mask_ratio: float | None = Field(None, ge=0, le=0.95, description="Share of patches hidden from the encoder.")
    decoder: DecoderSpec | None = None
    norm_targets: bool = Field(True, description="Reconstruct pixels normalised per patch.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.95), strict=False)
    crop_scale: CropScale | None = Field(
        None,
        description="Each image is a random box of it, with least and largest share of the area; [1, 1]: whole images. "
        "Default: MAE's [0.2, 1] for images above 64 pixels and networks of ordinary size, else [1, 1].",
    )
    horizontal_flip: bool | None = Field(
        None, description="Mirror half of the images. Default: as for crop_scale, true or false."
    )


class SupernetSpec(MaskedSpec):
    """Train the shared weights by masked distillation without labels (MaskTAS, ICLR 2024)."""

    reconstruction: bool = Field(True, description="Reconstruct masked pixels.")
    distillation: bool = Field(True, description="Predict the teacher's features of the visible patches.")
    beta: float = Field(1.0, ge=0, le=1000, description="Weight of the distillation loss.")
    sampling: Literal["uniform"] = Field("uniform", description="One architecture a step, each gene uniform.")

    @model_validator(mode="after")
    def _an_objective(self) -> Self:
        if not self.reconstruction and not (self.distillation and self.beta):
            raise ValueError("reconstruction and distillation (or its beta) are off: there would be nothing to learn")
        return self
