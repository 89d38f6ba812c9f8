"""What is searched: the space, the limits, and the axes of the front."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from models.architecture import MAX_NORM_EPS
from search.constraints import MAX_LIMIT
from search.space import IMG_SIZES, MAX_CHOICES, MAX_NAME, PATCH_SIZES
from service.jobs.spec.base import Spec


class SpaceFields(Spec):
    """What a space chooses from, and what its members have in common."""

    embed_dim: list[int] | None = Field(
        None, min_length=1, max_length=MAX_CHOICES, description="Widths of the network, one for all its blocks."
    )
    depth: list[int] | None = Field(None, min_length=1, max_length=MAX_CHOICES, description="Numbers of blocks.")
    num_heads: list[int] | None = Field(
        None, min_length=1, max_length=MAX_CHOICES, description="Head counts, chosen for each block."
    )
    mlp_ratio: list[float] | None = Field(
        None,
        min_length=1,
        max_length=MAX_CHOICES,
        description="Hidden widths as multiples of the network's, per block.",
    )
    head_dim: int | None = Field(None, ge=1, le=1024, description="Width of a head; its default is 64.")
    patch_size: int | None = Field(None, ge=PATCH_SIZES[0], le=PATCH_SIZES[1], description="Pixels; divides img_size.")
    pool: Literal["avg", "token"] | None = Field(
        None,
        description="What the head reads, after the last norm: the mean of the patches (default) or the class token.",
    )
    norm_eps: float | None = Field(None, gt=0, le=MAX_NORM_EPS, description="Of every LayerNorm; its default is 1e-6.")
    rel_pos: bool | None = Field(
        None, description="Relative position on keys and values, as in AutoFormer; its default is false."
    )


class SpaceOverrides(SpaceFields):
    """Fields that replace those of the preset."""


class SpaceSpec(SpaceFields):
    """A named space (`preset`, by default chosen by image size), or one of your own (the lists, and no preset).

    A space of your own needs the four lists, `img_size` and `patch_size`. What `GET /spaces/{name}` shows as `space` is
    such a one.
    """

    preset: str | None = Field(None, max_length=100)
    img_size: int | None = Field(None, ge=IMG_SIZES[0], le=IMG_SIZES[1], description="Side of the input in pixels.")
    in_chans: Literal[1, 3] | None = Field(None, description="1: grey, 3: RGB; by default those of the images.")
    overrides: SpaceOverrides | None = Field(None, description="Of the preset; a space of your own has none.")
    name: str | None = Field(None, min_length=1, max_length=MAX_NAME, description="Of a space of your own.")
    schema_version: Literal[1] | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """The fields of a space of one's own that are given; none when a preset is asked for."""
        return tuple(name for name in ("name", *SpaceFields.model_fields) if getattr(self, name) is not None)

    @model_serializer(mode="wrap")
    def _leave_out_the_other_form(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A filled space has no open field; what is None belongs to the form that was not taken.
        return {name: value for name, value in dump(self).items() if value is not None}


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
