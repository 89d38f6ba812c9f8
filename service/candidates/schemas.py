"""What the API shows of candidates."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from service.db.models import Candidate
from service.ids import format_architecture_id
from service.pagination import Page
from service.schemas import Answer, Json, example


class Axis(StrEnum):
    """A figure that candidates are compared by. Which costs there are depends on the search."""

    SCORE = "score"
    PARAMS_M = "params_m"
    GMACS = "gmacs"
    WEIGHT_MB = "weight_mb"
    PEAK_MEM_MB = "peak_mem_mb"
    LATENCY_MS = "latency_ms"

    @property
    def goal(self) -> Literal["min", "max"]:
        """Which direction is better."""
        return "max" if self is Axis.SCORE else "min"


class Order(StrEnum):
    """How a list of candidates is sorted: as they were evaluated, or by a figure, the best first."""

    N = "n"
    SCORE = "score"
    PARAMS_M = "params_m"
    GMACS = "gmacs"
    WEIGHT_MB = "weight_mb"
    PEAK_MEM_MB = "peak_mem_mb"
    LATENCY_MS = "latency_ms"


class CandidateView(Answer):
    """A scored architecture of a search."""

    model_config = example(
        {
            "id": "arch_01980000000070008000000000000000_17",
            "n": 17,
            "generation": 2,
            "genotype": [3, 2, 4, 3, 2, 3, 4, 64],
            "architecture": "/architectures/arch_01980000000070008000000000000000_17",
            "score": -0.0123,
            "scores": {"consistency": -0.0123, "consistency_bare": -0.0211, "feature": -0.1432},
            "costs": {"params_m": 0.105, "gmacs": 0.0017},
            "feasible": True,
            "on_front": True,
            "parents": [3, 9],
            "rank": 0,
            "accuracy": {"val": 0.98, "holdout": 0.97},
        }
    )

    id: str
    n: int = Field(description="Order of evaluation, from 0.")
    generation: int
    genotype: list[float] = Field(description="Depth, one MLP ratio a block, one head count a block, width.")
    architecture: str = Field(description="Path of the full description.")
    score: float | None = Field(description="The higher the better; null when it could not be computed.")
    scores: Json = Field(description="By name, all that was measured, and what the search followed; larger is better.")
    costs: Json
    feasible: bool = Field(description="Whether it meets all limits of the search.")
    on_front: bool = Field(description="Whether no other candidate beats it in every objective of the search.")
    parents: list[int]
    rank: int | None = Field(description="Place among the retrained networks; 0 is the winner.")
    accuracy: Json | None = Field(description="Of retrained networks.")

    @classmethod
    def of(cls, row: Candidate) -> Self:
        """Show a row."""
        public_id = format_architecture_id(row.job_id, row.n)
        return cls(
            id=public_id,
            n=row.n,
            generation=row.generation,
            genotype=row.genotype,
            architecture=f"/architectures/{public_id}",
            score=row.score,
            scores=row.scores,
            costs=row.costs,
            feasible=row.feasible,
            on_front=row.on_front,
            parents=row.parents,
            rank=row.rank,
            accuracy=row.accuracy,
        )


class CandidateList(Page[CandidateView]):
    """Candidates of a search."""


class ParetoFront(Answer):
    """The candidates that no other one beats on both axes, or in every objective of the search."""

    x: Axis | None = Field(description="Null: the front is over the objectives of the search.")
    y: Axis | None
    feasible: bool = Field(description="Whether only candidates within the limits took part.")
    data: list[CandidateView]
