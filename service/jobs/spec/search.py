"""How candidates are proposed and scored."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from service.jobs.spec.base import Spec


class EvaluationSpec(Spec):
    """How a candidate is scored: agreement of its token relations with the teacher's, on fixed images and masks."""

    images: int = Field(2048, ge=1, le=1_000_000, description="At most this many validation images.")
    temperature: float = Field(1.0, ge=0.001, le=100)
    batch_size: int = Field(256, ge=1, le=65_536)


class SearchPart(Spec):
    """The search over the supernet. Defaults are those of AutoFormer's published script."""

    algorithm: Literal["evolution", "random"] = "evolution"
    metric: Literal["consistency"] = "consistency"
    population: int = Field(50, ge=2, le=10_000)
    generations: int = Field(20, ge=1, le=100_000)
    parents: int = Field(10, ge=1, le=10_000)
    mutation_share: float = Field(0.5, ge=0, le=1, description="Share of each generation bred by mutation.")
    crossover_share: float = Field(0.5, ge=0, le=1, description="Share bred by crossover; the rest is random.")
    block_mutation_prob: float = Field(0.2, ge=0, le=1, description="For each block's heads and ratio.")
    network_mutation_prob: float = Field(0.4, ge=0, le=1, description="For depth and for width.")
    max_evaluations: int = Field(1000, ge=1, le=1_000_000)
    baseline: Literal["random", "none"] = Field("random", description="Random search with the same evaluations.")
    evaluation: EvaluationSpec = Field(default_factory=lambda: EvaluationSpec())

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.parents > self.population:
            raise ValueError(f"parents {self.parents} exceed the population of {self.population}")
        if self.mutation_share + self.crossover_share > 1:
            raise ValueError("mutation_share + crossover_share must not exceed 1")
        return self
