"""How candidates are proposed and scored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.jobs.spec.base import Spec, short_form


class EvaluationSpec(Spec):
    """How a candidate is scored: agreement of its token relations with the teacher's, on fixed images and masks."""

    images: int = Field(2048, ge=1, le=1_000_000, description="At most this many validation images.")
    temperature: float = Field(1.0, ge=0.001, le=100)
    batch_size: int = Field(256, ge=1, le=65_536)


class ListedArchitecture(Spec):
    """One network of the space: a published one by its name, or the genes of any, as in an architecture JSON."""

    name: str | None = Field(None, min_length=1, max_length=100, description="Of a published network, or any label.")
    embed_dim: int | None = Field(None, ge=1)
    depth: int | None = Field(None, ge=1)
    num_heads: list[int] | None = Field(None, min_length=1, max_length=128)
    mlp_ratio: list[float] | None = Field(None, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _genes_or_name(self) -> Self:
        genes = [self.embed_dim, self.depth, self.num_heads, self.mlp_ratio]
        if any(gene is not None for gene in genes):
            if None in genes:
                raise ValueError("embed_dim, depth, num_heads and mlp_ratio go together")
            if not len(self.num_heads or ()) == len(self.mlp_ratio or ()) == self.depth:
                raise ValueError(f"num_heads and mlp_ratio must have {self.depth} entries each, one for each block")
        elif self.name is None:
            raise ValueError("give the name of a published network, or embed_dim, depth, num_heads and mlp_ratio")
        return self


class SearchPart(Spec):
    """The search over the supernet. Defaults are those of AutoFormer's published script."""

    algorithm: Literal["evolution", "random", "listed"] = Field(
        "evolution", description="`listed` proposes nothing: it scores the networks in `architectures`."
    )
    architectures: list[Annotated[ListedArchitecture, short_form("name", ListedArchitecture)]] | None = Field(
        None, min_length=1, max_length=1000, description="Of `listed`: what is scored, all of it."
    )
    metric: Literal["consistency"] = "consistency"
    population: int = Field(50, ge=2, le=10_000)
    generations: int = Field(20, ge=1, le=100_000)
    parents: int = Field(10, ge=1, le=10_000)
    mutation_share: float = Field(0.5, ge=0, le=1, description="Share of each generation bred by mutation.")
    crossover_share: float = Field(0.5, ge=0, le=1, description="Share bred by crossover; the rest is random.")
    block_mutation_prob: float = Field(0.2, ge=0, le=1, description="For each block's heads and ratio.")
    network_mutation_prob: float = Field(0.4, ge=0, le=1, description="For depth and for width.")
    max_evaluations: int = Field(1000, ge=1, le=1_000_000)
    baseline: Literal["random", "none"] | None = Field(
        None, description="Random search with the same evaluations. Default: random, but none beside a list."
    )
    evaluation: EvaluationSpec = Field(default_factory=lambda: EvaluationSpec())

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.parents > self.population:
            raise ValueError(f"parents {self.parents} exceed the population of {self.population}")
        if (self.algorithm == "listed") != (self.architectures is not None):
            raise ValueError("architectures are given with algorithm listed, and only with it")
        if self.architectures is not None and len(self.architectures) > self.max_evaluations:
            raise ValueError(f"{len(self.architectures)} architectures exceed max_evaluations {self.max_evaluations}")
        if self.mutation_share + self.crossover_share > 1:
            raise ValueError("mutation_share + crossover_share must not exceed 1")
        return self
