"""What is searched: the space, the limits, and the axes of the front."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from models.architecture import MAX_NORM_EPS
from search.constraints import MAX_LIMIT
from search.latency import MAX_BATCH, Runtime
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


_METRICS = (
    "`params_m`: parameters in 10^6; `gmacs`: multiply-accumulates of one image in 10^9; `weight_mb`: weights in 10^6 "
    "bytes; `peak_mem_mb`: weights and live tensors of one image in 10^6 bytes; `latency_ms`: of one call, on a device."
)


class ConstraintMetric(StrEnum):
    """What a limit may be set on."""

    PARAMS_M = "params_m"
    GMACS = "gmacs"
    WEIGHT_MB = "weight_mb"
    PEAK_MEM_MB = "peak_mem_mb"
    LATENCY_MS = "latency_ms"


WORKER = "worker"
"""Of a limit on latency: candidates are measured on the worker that runs the job, instead of predicted by a table."""


class LatencySpec(Spec):
    """Where and how a latency counts; only of `latency_ms`, which needs a device or a table."""

    device: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Of `latency_ms`: id of a device, `dev_...`, whose table predicts it, or `worker`: each candidate "
        "is measured on the worker that runs the job.",
    )
    batch_size: int | None = Field(
        None, ge=1, le=MAX_BATCH, description="Images of one call; that of the table, or 1 on the worker."
    )
    percentile: int | None = Field(
        None, ge=1, le=99, description="Which of the repeated calls counts; that of the table, or 50 on the worker."
    )
    runtime: Runtime | None = Field(
        None, strict=False, description="What executes the network; that of the table, or `torch` on the worker."
    )
    table: dict[str, Any] | None = Field(
        None,
        description="The table that predicts: the device's as it was when the job was made, or one of your own.",
    )
    table_digest: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the table's JSON.")

    @property
    def latency_fields(self) -> tuple[str, ...]:
        """The fields of latency that are given."""
        return tuple(name for name in LatencySpec.model_fields if getattr(self, name) is not None)

    @model_serializer(mode="wrap")
    def _leave_out_latency_of_others(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {
            name: value
            for name, value in dump(self).items()
            if value is not None or name not in LatencySpec.model_fields
        }

    def _check_latency(self, is_latency: bool) -> None:
        if not is_latency and self.latency_fields:
            raise ValueError(f"{', '.join(self.latency_fields)}: only of metric latency_ms")
        if self.device == WORKER and (self.table is not None or self.table_digest is not None):
            raise ValueError("give device worker, or a table; not both")


class ConstraintSpec(LatencySpec):
    """A limit on one metric; at least one side is given, and for `latency_ms` a device or a table."""

    metric: ConstraintMetric = Field(strict=False, description=_METRICS)
    min: float | None = Field(None, ge=0, le=MAX_LIMIT)
    max: float | None = Field(None, gt=0, le=MAX_LIMIT)

    @model_validator(mode="after")
    def _sides(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        is_latency = self.metric is ConstraintMetric.LATENCY_MS
        self._check_latency(is_latency)
        if is_latency and self.device is None and self.table is None:
            raise ValueError("latency_ms needs a device (an id of GET /devices, or worker) or a table")
        return self


class ObjectiveMetric(StrEnum):
    """What the Pareto front is drawn over."""

    SCORE = "score"
    PARAMS_M = "params_m"
    GMACS = "gmacs"
    WEIGHT_MB = "weight_mb"
    PEAK_MEM_MB = "peak_mem_mb"
    LATENCY_MS = "latency_ms"


class ObjectiveSpec(LatencySpec):
    """One axis of the front; for `latency_ms` the device or table of the limit on it counts, or one given here."""

    metric: ObjectiveMetric = Field(strict=False, description=_METRICS)
    goal: Literal["min", "max"]

    @model_validator(mode="after")
    def _latency_alone(self) -> Self:
        self._check_latency(self.metric is ObjectiveMetric.LATENCY_MS)
        if self.device == WORKER:
            raise ValueError("an objective needs the table of a device; on the worker latency can only be limited")
        return self
