"""Masked pretraining: the teacher's and the supernet's."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from service.jobs.spec.base import CropScale, DecayRate, OptimSpec, Spec


class DecoderSpec(Spec):
    """The masked autoencoder's decoder; small ones suffice since only the encoder is kept."""

    embed_dim: int = Field(ge=8, le=2048)
    depth: int = Field(ge=1, le=32)
    num_heads: int = Field(ge=1, le=64)


_MAE_DECODER = {"embed_dim": 512, "depth": 8, "num_heads": 16}
"""He et al. 2022, section 3 and table 1."""


def _named_decoder(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value != "mae":
        raise ValueError(f"found {value!r}, allowed is 'mae' or an object with embed_dim, depth and num_heads")
    return _MAE_DECODER


class MaskedSpec(OptimSpec):
    """What teacher and supernet pretraining share: masking and reconstruction (He et al. 2022, MAE)."""

    mask_ratio: float | None = Field(None, ge=0, le=0.95, description="Share of patches hidden from the encoder.")
    decoder: Annotated[
        DecoderSpec | None,
        BeforeValidator(_named_decoder, json_schema_input_type=DecoderSpec | Literal["mae"] | None),
    ] = Field(
        None,
        description="Default: 2 blocks of width 256, for small networks 1 of 64. `mae`: the 8 blocks of width 512 with "
        "16 heads of the publication, which cost more than a small encoder.",
    )
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


class DistillSpec(Spec):
    """What of the teacher is learnt, and how; `models.distill` has the formulas."""

    positions: Literal["visible", "masked", "all"] = Field(
        "visible",
        description="`visible`: encoder tokens, of a teacher that sees the same patches. `masked`: decoder tokens at "
        "hidden patches, of a teacher that sees all. `all`: both.",
    )
    layer: Literal["last", "three_quarter"] = Field(
        "last", description="`three_quarter`: after block round(0.75 L) of L, in student and teacher."
    )
    loss: Literal["smooth_l1", "l1", "l2", "relation"] | None = Field(
        None, description="`relation`: divergence of token relations. Default: smooth_l1, with `widths` relation."
    )
    projector: Literal["none", "linear", "mlp1", "mlp2"] | None = Field(
        None, description="From student to teacher tokens. Default: linear; relations take bare tokens: none."
    )
    target_norm: Literal["layernorm", "l2", "none"] | None = Field(
        None,
        description="Of each teacher token; with `l2` of projected student tokens too. Default: layernorm, for "
        "relations none.",
    )


class SupernetSpec(MaskedSpec):
    """Train the shared weights by masked distillation without labels (MaskTAS, ICLR 2024)."""

    reconstruction: bool = Field(True, description="Reconstruct masked patches.")
    recon_target: Literal["pixels", "teacher", "both"] = Field(
        "pixels", description="`teacher`: what the teacher's own decoder predicts. `both`: a weighted sum."
    )
    recon_teacher_share: float = Field(
        0.5, gt=0, lt=1, description="Weight of the teacher's prediction in recon_target `both`."
    )
    distillation: bool = Field(True, description="Learn from the teacher's features.")
    distill: DistillSpec = Field(default_factory=lambda: DistillSpec())
    beta: float = Field(1.0, ge=0, le=1000, description="Weight of the distillation loss.")
    sampling: Literal["uniform", "sandwich", "window"] | None = Field(
        None,
        description="`uniform`: each gene uniform. `sandwich`: largest, smallest, the rest uniform. `window`: within "
        "the job's constraints. Default: uniform, with `widths` sandwich.",
    )
    students: int | None = Field(
        None,
        ge=1,
        le=16,
        description="Networks that a step trains on the same images, mask and teacher pass; the loss is their mean. "
        "Default: 1, for sandwich 3.",
    )
    window_extremes: float = Field(
        0.1,
        ge=0,
        le=1,
        description="With sampling `window`: probability of its smallest or largest network instead of a random one.",
    )

    @model_validator(mode="after")
    def _an_objective(self) -> Self:
        if not self.reconstruction and not (self.distillation and self.beta):
            raise ValueError("reconstruction and distillation (or its beta) are off: there would be nothing to learn")
        return self


class WidthsSpec(Spec):
    """Experimental: train every network at a grid of widths, the narrower ones by the next wider one.

    The grid replaces the widths of the space and is given in shares of the largest of them.
    """

    smallest: float = Field(gt=0, lt=1, description="The least width.")
    step: float = Field(gt=0, lt=1, description="From one width to the next; must lead from `smallest` to 1.")
