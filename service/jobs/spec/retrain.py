"""Supervised training of what was found, and what is written of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.jobs.spec.base import CropScale, OptimSpec, Spec

RetrainMode = Literal["finetune", "scratch", "none"]


class RetrainSpec(OptimSpec):
    """Supervised training of the best candidates; the only part that needs labels."""

    mode: RetrainMode | None = Field(
        None, description="`finetune` starts from the supernet's slice. Default: finetune with labels, none without."
    )
    top_k: int = Field(3, ge=1, le=100, description="How many of the best-scored candidates are retrained.")
    layer_decay: float = Field(0.75, gt=0, le=1, description="Rate of a block relative to the one above it.")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    max_shift: float | None = Field(
        None,
        ge=0,
        le=0.5,
        description="Random translation, as a share of the image side. Default: 0.125, 0 with crops.",
    )
    crop_scale: CropScale | None = Field(
        None,
        description="Each image is a random box of it, with least and largest share of the area, in place of a "
        "translation; [1, 1]: whole images. Default: [1, 1].",
    )
    horizontal_flip: bool = Field(False, description="Mirror at random; wrong for digits and text, right for photos.")


class ExportSpec(Spec):
    """What is written for each retrained network."""

    formats: list[Literal["safetensors"]] = Field(["safetensors"], min_length=1, max_length=1)
