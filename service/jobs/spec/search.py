"""How candidates are proposed and scored."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from service.jobs.spec.base import Spec, short_form

MeasureName = Literal["consistency", "consistency_bare", "reconstruction", "feature", "effective_rank"]
"""Label-free measures of a subnet; :class:`search.measures.Measure` says what they are."""

MetricName = Annotated[str, Field(min_length=1, max_length=100)]
"""What a search may follow: a measure, several fused by ranks, a control (:class:`search.measures.Control`), or a
metric of an installed package."""

MAX_SEEDED = 0.75
"""Of a first generation. By the random rest measures are judged, and ranks are fused."""

DepthShare = Annotated[float, Field(gt=0, le=1)]


class EvaluationSpec(Spec):
    """How a candidate is measured: on fixed images of the validation part under fixed masks, without labels."""

    images: int = Field(2048, ge=1, le=1_000_000, description="At most this many validation images.")
    mask_ratio: float | None = Field(
        None, ge=0, le=0.95, description="Share of hidden patches. Default: that of the supernet's training."
    )
    mask_seeds: int = Field(1, ge=1, le=16, description="Independent masks of each image; measures are averaged.")
    depths: list[DepthShare] | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Shares of the blocks after which relations are compared, in the student and in the teacher. "
        "Default: where distillation has compared them, 1 or 0.75.",
    )
    standardise: bool = Field(True, description="Give each row of relations mean 0 and variance 1.")
    temperature: float | None = Field(
        None, ge=0.001, le=100, description="Of the relations. Default: 1, without standardised rows 0.1."
    )
    companions: bool | list[MeasureName] | None = Field(
        None,
        description="Measures that are taken beside the metric's: all (true), none (false), or these. "
        "Default: the cheap ones.",
    )
    batch_size: int = Field(256, ge=1, le=65_536)
    shared_prefixes: bool = Field(
        True, description="Compute what candidates begin with alike once for all of them; scores are the same."
    )
    racing: float | None = Field(
        None,
        ge=1e-6,
        le=0.5,
        description="Drop a candidate before it was measured on all images once it cannot be among the best any more; "
        "the number is the probability that this goes wrong once or more in the whole search. Null: measure all fully.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=1000,
        description="How many workers score at once: this job's own, and those that have nothing else to do. The "
        "scores are the same.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="How many processes of each worker score at once, each with as many threads as the worker gives to "
        "a job. The scores are the same.",
    )
    teacher_cache: bool = Field(
        True, description="Keep the teacher's side in memory instead of computing it anew; scores are the same."
    )

    @field_validator("depths")
    @classmethod
    def _ascending(cls, depths: list[float] | None) -> list[float] | None:
        if depths is not None and depths != sorted(set(depths)):
            raise ValueError("shares must ascend, each one once")
        return depths


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


Listed = Annotated[ListedArchitecture, short_form("name", ListedArchitecture)]


class PopulationSpec(Spec):
    """Networks that the first generation ends with, before anything is bred; they are scored like all others."""

    job: str | None = Field(
        None, min_length=1, max_length=100, description="Id of an earlier search, `job_...`, whose best are taken."
    )
    share: float = Field(
        0.5, gt=0, le=MAX_SEEDED, description="Of the first generation at most; the rest is drawn at random."
    )
    architectures: list[Listed] | None = Field(
        None, max_length=1000, description="The networks themselves, the best first. Default: those of the job."
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.job is None and self.architectures is None:
            raise ValueError("give the job of an earlier search, or architectures")
        return self


class ZeroCostSpec(Spec):
    """A start from random networks whose shape promises most before anything is trained."""

    measure: Literal["az_nas", "dss"] = Field(
        "az_nas",
        description="AZ-NAS fuses expressivity, trainability and MACs by ranks; DSS sums diversities of attention "
        "layers and saliencies of the others. Both look at fresh weights.",
    )
    candidates: int = Field(500, ge=2, le=20_000, description="Random networks within the limits to choose from.")
    share: float = Field(
        0.5, gt=0, le=MAX_SEEDED, description="Of the first generation, less what `population_from` takes."
    )
    images: int = Field(16, ge=1, le=1024, description="Of noise, that AZ-NAS looks at.")


class SearchPart(Spec):
    """The search over the supernet. Defaults are those of AutoFormer's published script."""

    algorithm: Literal["evolution", "nsga2", "predictor", "random", "listed"] = Field(
        "evolution",
        description="`nsga2` looks for the whole front of the job's `objectives` instead of one best network. "
        "`predictor` is `evolution` whose children are screened by a model of the scores so far. `listed` proposes "
        "nothing: it scores the networks in `architectures`.",
    )
    architectures: list[Listed] | None = Field(
        None, min_length=1, max_length=1000, description="Of `listed`: what is scored, all of it."
    )
    metric: MetricName | None = Field(
        None,
        description="What the search follows. Default: consistency, without distillation consistency_bare. "
        "One of the measures (see `evaluation.companions`), `fused`, which sums the logarithms of ranks, the controls "
        "`params`, `width` and `random`, or a metric of an installed package.",
    )
    fusion: list[MeasureName] | None = Field(
        None,
        min_length=2,
        max_length=5,
        description="What `fused` is made of. Default: consistency (of bare tokens without distillation) and "
        "reconstruction, if there is one.",
    )
    population_from: Annotated[PopulationSpec, short_form("job", PopulationSpec)] | None = Field(
        None,
        description="Start from an earlier search: its best candidates within the limits of this one end the first "
        "generation.",
    )
    warm_start_zero_cost: Annotated[ZeroCostSpec, short_form("measure", ZeroCostSpec)] | None = Field(
        None,
        description="Choose a part of the first generation by a measure that needs no training. The report then tells "
        "how well that measure ranks.",
    )
    population: int = Field(50, ge=2, le=10_000)
    generations: int = Field(20, ge=1, le=100_000)
    parents: int = Field(
        10, ge=1, le=10_000, description="Best candidates that are bred from; all survivors with `nsga2`."
    )
    mutation_share: float = Field(0.5, ge=0, le=1, description="Share of each generation bred by mutation.")
    crossover_share: float = Field(0.5, ge=0, le=1, description="Share bred by crossover; the rest is random.")
    mutation: Literal["code", "paper"] = Field(
        "code",
        description="Published probabilities of mutation: those of AutoFormer's released script, 0.2 for a block and "
        "0.4 for the network, or those that its paper prints, 0.4 and 0.2. The next two fields go before it.",
    )
    block_mutation_prob: float | None = Field(
        None, ge=0, le=1, description="For each block's heads and ratio. Default: that of `mutation`."
    )
    network_mutation_prob: float | None = Field(
        None, ge=0, le=1, description="For depth and for width. Default: that of `mutation`."
    )
    prescreen: int = Field(
        10, ge=2, le=1000, description="Of `predictor`: children that are bred for each one that is scored."
    )
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
        if self.algorithm == "listed" and (self.population_from or self.warm_start_zero_cost) is not None:
            raise ValueError("population_from and warm_start_zero_cost: a list is scored as it is")
        if self.architectures is not None and len(self.architectures) > self.max_evaluations:
            raise ValueError(f"{len(self.architectures)} architectures exceed max_evaluations {self.max_evaluations}")
        if self.fusion is not None and len(set(self.fusion)) < len(self.fusion):
            raise ValueError("fusion: each measure once")
        if self.mutation_share + self.crossover_share > 1:
            raise ValueError("mutation_share + crossover_share must not exceed 1")
        return self
