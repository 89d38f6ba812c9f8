"""What the API answers about a search before it exists."""

from __future__ import annotations

from pydantic import Field

from service.jobs.schemas import Notice
from service.schemas import Answer, Json


class ReachableCost(Answer):
    """What members of the space cost at least and at most, with the head that they are deployed with."""

    metric: str
    min: float
    max: float


class Feasibility(Answer):
    """How many architectures of the space meet all limits."""

    architectures: int = Field(ge=1)
    space_size: int


class SearchPreview(Answer):
    """What a search would be. Nothing was created."""

    spec: Json = Field(description="Effective: every default that would be used is in it.")
    space: Json = Field(description="The space that the spec names.")
    reachable: list[ReachableCost]
    feasible: Feasibility
    warnings: list[Notice]
