"""What is searched: the space, the limits, and the axes of the front."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from search.constraints import MAX_LIMIT
from service.jobs.spec.base import Spec


class SpaceOverrides(Spec):
    """Lists that replace those of the preset."""

    embed_dim: list[int] | None = Field(None, min_length=1, max_length=64)
    depth: list[int] | None = Field(None, min_length=1, max_length=64)
    num_heads: list[int] | None = Field(None, min_length=1, max_length=64)
    mlp_ratio: list[float] | None = Field(None, min_length=1, max_length=64)
    head_dim: int | None = Field(None, ge=1, le=1024)
    patch_size: int | None = Field(None, ge=1, le=256)


class SpaceSpec(Spec):
    """A named space, possibly with other gene lists; ``None``: by image size."""

    preset: str | None = Field(None, max_length=100)
    img_size: int | None = Field(None, ge=8, le=1024)
    in_chans: Literal[1, 3] | None = None
    overrides: SpaceOverrides | None = None


class ConstraintMetric(StrEnum):
    """What a limit may be set on."""

    PARAMS_M = "params_m"
    GMACS = "gmacs"


class ConstraintSpec(Spec):
    """A limit on one metric; at least one side is given."""

    metric: ConstraintMetric = Field(strict=False)
    min: float | None = Field(None, ge=0, le=MAX_LIMIT)
    max: float | None = Field(None, gt=0, le=MAX_LIMIT)

    @model_validator(mode="after")
    def _sides(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self


class ObjectiveMetric(StrEnum):
    """What the Pareto front is drawn over."""

    SCORE = "score"
    PARAMS_M = "params_m"
    GMACS = "gmacs"


class ObjectiveSpec(Spec):
    """One axis of the Pareto front."""

    metric: ObjectiveMetric = Field(strict=False)
    goal: Literal["min", "max"]
