"""Supervised training of what was found, and what is written of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.jobs.spec.base import Spec
from service.jobs.spec.recipe import SupervisedSpec

RetrainMode = Literal["finetune", "scratch", "none"]


class RetrainSpec(SupervisedSpec):
    """Supervised training of the best candidates; the only part of a label-free search that needs labels.

    Defaults depend on `mode` and `recipe`; docs/retraining.md has them as tables, with their sources.
    """

    mode: RetrainMode | None = Field(
        None, description="`finetune` starts from the supernet's slice. Default: finetune with labels, none without."
    )
    top_k: int = Field(3, ge=1, le=100, description="How many of the best-scored candidates are retrained.")
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="Rate of a block relative to the one above it. Default: 1 from scratch."
    )


class ExportSpec(Spec):
    """What is written for each retrained network."""

    formats: list[Literal["safetensors"]] = Field(["safetensors"], min_length=1, max_length=1)
