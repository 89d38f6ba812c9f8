"""The body of ``POST /devices``: where a latency table comes from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.jobs.spec.base import Spec, short_form
from service.jobs.spec.common import MAX_SEED
from service.jobs.spec.space import WORKER, SpaceSpec

AGENT_PREFIX = "agent:"
"""What comes before the name of an agent where one is to measure."""

AGENT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Names of agents are part of paths and of command lines."""

MAX_AGENT_NAME = 63


class LatencyBuildSpec(Spec):
    """Measure networks of a space and fit a table to them."""

    space: Annotated[SpaceSpec, short_form("preset", SpaceSpec)]
    num_classes: int | None = Field(
        None,
        ge=0,
        le=100_000,
        description="Of the networks' heads; by default 10 for images of up to 64 px, else 1000.",
    )
    on: str = Field(
        WORKER,
        max_length=len(AGENT_PREFIX) + MAX_AGENT_NAME,
        pattern=rf"^({WORKER}|{AGENT_PREFIX}{AGENT_NAME})$",
        description="Who measures: a worker, or `agent:NAME`, a device agent elsewhere.",
    )
    runtime: Literal["torch", "onnxruntime"] = Field("torch", description="What executes the networks.")
    precision: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="bf16: of torch only; fp16: of torch on a GPU only."
    )
    batch_size: int = Field(1, ge=1, le=4096, description="Images of one call; latencies are of the call.")
    threads: int | None = Field(
        None, ge=1, le=4096, description="Of one operation; by default those that whoever measures gives to a job."
    )
    percentile: int = Field(50, ge=1, le=99, description="Which of the timed calls counts; 50 is the median.")
    warmup_runs: int = Field(5, ge=0, le=1000, description="Calls before; more follow until they are steady.")
    runs: int = Field(30, ge=1, le=10_000, description="Timed calls of each network.")
    networks: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many networks the table is fitted to; by default three for each time that is to be found.",
    )
    held_out: int = Field(
        20, ge=0, le=1000, description="How many other networks tell how far its predictions are off."
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="Of the choice of networks.")

    @property
    def agent(self) -> str | None:
        """Name of the agent that measures; None when a worker does."""
        return self.on.removeprefix(AGENT_PREFIX) if self.on.startswith(AGENT_PREFIX) else None

    @model_validator(mode="after")
    def _known_precision(self) -> Self:
        if self.runtime == "onnxruntime" and self.precision != "fp32":
            raise ValueError(f"onnxruntime measures in fp32; found precision {self.precision}")
        return self


class DeviceSpec(Spec):
    """A latency target: exactly one of `table` and `build`."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$", description="What to call it.")
    table: dict[str, Any] | None = Field(None, description="A latency table, as `GET /devices/{id}/table` shows one.")
    build: LatencyBuildSpec | None = Field(None, description="Measure one.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.table is None) == (self.build is None):
            raise ValueError("exactly one of table and build")
        return self
