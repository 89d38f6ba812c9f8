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
    feasible: bool = Field(description="It meets all limits.")


class SearchPreview(Answer):
    """What a search would be. Nothing was created."""

    spec: Json = Field(description="Effective: every default that would be used is in it.")
    space: Json = Field(description="The space that the spec names, or the slimmable network.")
    reachable: list[ReachableCost]
    feasible: Feasibility
    widths: list[WidthPreview] = Field(description="Of a slimmable network, the smallest first; empty for others.")
    warnings: list[Notice]
