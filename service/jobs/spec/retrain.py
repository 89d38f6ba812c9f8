"""Supervised training of what was found, and what is written of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.jobs.spec.base import OptimSpec, Spec


class RetrainSpec(OptimSpec):
    """Supervised training of the best candidates; the only part that needs labels."""

    mode: Literal["finetune", "scratch", "none"] | None = Field(
        None, description="`finetune` starts from the supernet's slice. Default: finetune with labels, none without."
    )
    top_k: int = Field(3, ge=1, le=100, description="How many of the best-scored candidates are retrained.")
    layer_decay: float = Field(0.75, gt=0, le=1, description="Rate of a block relative to the one above it.")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    max_shift: float = Field(0.125, ge=0, le=0.5, description="Random translation, as a share of the image side.")
    horizontal_flip: bool = Field(False, description="Mirror at random; wrong for digits and text, right for photos.")


class ExportSpec(Spec):
    """What is written for each retrained network."""

    formats: list[Literal["safetensors"]] = Field(["safetensors"], min_length=1, max_length=1)
