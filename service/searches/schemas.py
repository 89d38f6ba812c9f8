"""What the API answers about a search before it exists."""

from __future__ import annotations

from pydantic import Field

from service.jobs.schemas import Notice
from service.schemas import Answer, Json


class ReachableCost(Answer):
    """What members of the space, or the widths, cost at least and at most, with the head of the deployed network."""

    metric: str
    min: float
    max: float


class Feasibility(Answer):
    """How many architectures of the space, or how many widths, meet all limits."""

    architectures: int = Field(ge=1)
    space_size: int


class WidthPreview(Answer):
    """One width of a slimmable network, before it is trained."""

    ratio: float = Field(description="Share of the whole network's width.")
    width: int = Field(description="Channels of a token.")
    head_dim: int = Field(description="Channels of a head.")
    trained: bool = Field(description="False: interpolated between the trained widths beside it.")
    params_m: float
    gmacs: float
    weight_mb: float
    peak_mem_mb: float
    feasible: bool = Field(description="It meets all limits.")


class ForecastRange(Answer):
    """A forecast, and what it may well turn out to be."""

    low: float
    likely: float
    high: float


class ForecastView(Answer):
    """What the search will take on a worker that does nothing else, from speeds that workers have measured."""

    wall_seconds: ForecastRange = Field(description="From its start to its end, without time in the queue.")
    device_hours: ForecastRange
    memory_mb: ForecastRange = Field(description="Of the training process at its largest, 10^6 bytes.")
    disk_mb: ForecastRange = Field(description="Added to store and run directory, 10^6 bytes.")
    stages: dict[str, float] = Field(description="Likely seconds of each stage.")
    workers: int = Field(ge=1, description="How many workers' speeds this rests on.")


class SearchPreview(Answer):
    """What a search would be. Nothing was created."""

    spec: Json = Field(description="Effective: every default that would be used is in it.")
    space: Json = Field(description="The space that the spec names, or the slimmable network.")
    reachable: list[ReachableCost]
    feasible: Feasibility
    widths: list[WidthPreview] = Field(description="Of a slimmable network, the smallest first; empty for others.")
    estimate: ForecastView | None = Field(description="Null while no worker of the queue has measured its speed.")
    warnings: list[Notice]
