"""What all parts of a job's spec share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Spec(BaseModel):
    """Base of all parts: unknown fields are refused, values are not coerced, NaN and infinity are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""How much of a running mean of Adam survives a step (Kingma and Ba 2015, algorithm 1)."""

AreaShare = Annotated[float, Field(ge=0.01, le=1)]


def _least_first(scale: tuple[float, float]) -> tuple[float, float]:
    if scale[0] > scale[1]:
        raise ValueError(f"the least share {scale[0]:g} is above the largest {scale[1]:g}")
    return scale


CropScale = Annotated[tuple[AreaShare, AreaShare], Field(strict=False), AfterValidator(_least_first)]
"""Least and largest area of a random box that becomes the image, as shares of it; (1, 1): whole images."""


def short_form(field: str, spec: type[Spec]) -> BeforeValidator:
    """Let a bare string stand for the object ``{field: string}``, in the schema that clients see as well."""
    return BeforeValidator(
        lambda value: {field: value} if isinstance(value, str) else value,
        json_schema_input_type=spec | Annotated[str, Field(description=f"Short for an object with this `{field}`.")],
    )


class OptimSpec(Spec):
    """AdamW with cosine decay after a linear warm-up, per step."""

    epochs: int | None = Field(None, ge=1, le=100_000)
    batch_size: int | None = Field(None, ge=1, le=65_536)
    lr: float | None = Field(None, gt=0, le=10, description="Peak learning rate, absolute (already scaled).")
    weight_decay: float = Field(0.05, ge=0, le=1, description="Not applied to one-dimensional tensors.")
    warmup_fraction: float | None = Field(
        None, ge=0, le=0.5, description="Share of all steps that the rate rises linearly."
    )
    clip_grad: float | None = Field(1.0, gt=0, description="Largest global gradient norm; null: no limit.")
