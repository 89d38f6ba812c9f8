"""The body of ``POST /search``: what a search is, in full.

Only ``method`` and ``dataset`` are required.  ``None`` means "choose for me": ``service.jobs.resolve`` fills every
such field from the dataset and the space, and the filled spec is what the job stores, echoes and computes from.  A
filled spec is itself a valid body, so any job can be repeated from what it shows.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import to_json

from search.constraints import MAX_LIMIT

MAX_METADATA_BYTES = 16_384

MAX_SEED = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8259, section 6)."""


class Spec(BaseModel):
    """Base of all parts: unknown fields are refused, values are not coerced, NaN and infinity are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


DecayRate = Annotated[float, Field(ge=0, lt=1)]
"""How much of a running mean of Adam survives a step (Kingma and Ba 2015, algorithm 1)."""


def _short(field: str, spec: type[Spec]) -> BeforeValidator:
    """Let a bare string stand for the object ``{field: string}``, in the schema that clients see as well."""
    return BeforeValidator(
        lambda value: {field: value} if isinstance(value, str) else value,
        json_schema_input_type=spec | Annotated[str, Field(description=f"Short for an object with this `{field}`.")],
    )


class DatasetRef(Spec):
    """Which images, and how they are split. The split depends on the dataset's content, never on the job's seed."""

    id: str = Field(min_length=1, max_length=200, description="Dataset id, or the name of a built-in.")
    val_fraction: float = Field(0.1, ge=0.01, le=0.5, description="Share of all images that candidates are ranked on.")
    holdout_fraction: float = Field(
        0.2, ge=0.01, le=0.5, description="Share set aside for one final measurement; an official test split wins."
    )
    labels: Literal["auto", "ignored"] = Field("auto", description="`ignored`: treat the dataset as unlabelled.")

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.val_fraction + self.holdout_fraction > 0.8:
            raise ValueError("val_fraction + holdout_fraction must leave at least 0.2 of the images for training")
        return self


class TeacherArchitecture(Spec):
    """Size of a teacher that is pretrained here; patch, image and channels are those of the space."""

    embed_dim: int = Field(ge=8, le=4096)
    depth: int = Field(ge=1, le=64)
    num_heads: int = Field(ge=1, le=64)
    head_dim: int = Field(ge=4, le=256)
    mlp_ratio: float = Field(gt=0, le=8)


class OptimSpec(Spec):
    """AdamW with cosine decay to zero after a linear warm-up, per step."""

    epochs: int | None = Field(None, ge=1, le=100_000)
    batch_size: int | None = Field(None, ge=1, le=65_536)
    lr: float | None = Field(None, gt=0, le=10, description="Peak learning rate, absolute (already scaled).")
    weight_decay: float = Field(0.05, ge=0, le=1, description="Not applied to one-dimensional tensors.")
    warmup_fraction: float = Field(0.1, ge=0, le=0.5, description="Share of all steps that the rate rises linearly.")
    clip_grad: float | None = Field(1.0, gt=0, description="Largest global gradient norm; null: no limit.")


class DecoderSpec(Spec):
    """The masked autoencoder's decoder; small ones suffice since only the encoder is kept."""

    embed_dim: int = Field(ge=8, le=2048)
    depth: int = Field(ge=1, le=32)
    num_heads: int = Field(ge=1, le=64)


class MaskedSpec(OptimSpec):
    """What teacher and supernet pretraining share: masking and reconstruction (He et al. 2022, MAE)."""

    mask_ratio: float | None = Field(None, ge=0, le=0.95, description="Share of patches hidden from the encoder.")
    decoder: DecoderSpec | None = None
    norm_targets: bool = Field(True, description="Reconstruct pixels normalised per patch.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.95), strict=False)


class PretrainSpec(MaskedSpec):
    """Pretrain a masked autoencoder on the dataset's images, labels unseen."""

    architecture: TeacherArchitecture | None = None


class TeacherSpec(Spec):
    """Where the frozen teacher comes from."""

    pretrain: PretrainSpec = Field(default_factory=lambda: PretrainSpec())


class SpaceSpec(Spec):
    """A named space, possibly with other gene lists; ``None``: by image size."""

    preset: str | None = Field(None, max_length=100)
    img_size: int | None = Field(None, ge=8, le=1024)
    in_chans: Literal[1, 3] | None = None
    overrides: SpaceOverrides | None = None


class SpaceOverrides(Spec):
    """Lists that replace those of the preset."""

    embed_dim: list[int] | None = Field(None, min_length=1, max_length=64)
    depth: list[int] | None = Field(None, min_length=1, max_length=64)
    num_heads: list[int] | None = Field(None, min_length=1, max_length=64)
    mlp_ratio: list[float] | None = Field(None, min_length=1, max_length=64)
    head_dim: int | None = Field(None, ge=1, le=1024)
    patch_size: int | None = Field(None, ge=1, le=256)


class ConstraintMetric(StrEnum):
    """What a limit may be set on."""

    PARAMS_M = "params_m"
    GMACS = "gmacs"


class ConstraintSpec(Spec):
    """A limit on one metric; at least one side is given."""

    metric: ConstraintMetric = Field(strict=False)
    min: float | None = Field(None, ge=0, le=MAX_LIMIT)
    max: float | None = Field(None, gt=0, le=MAX_LIMIT)

    @model_validator(mode="after")
    def _sides(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self


class ObjectiveMetric(StrEnum):
    """What the Pareto front is drawn over."""

    SCORE = "score"
    PARAMS_M = "params_m"
    GMACS = "gmacs"


class ObjectiveSpec(Spec):
    """One axis of the Pareto front."""

    metric: ObjectiveMetric = Field(strict=False)
    goal: Literal["min", "max"]


class SupernetSpec(MaskedSpec):
    """Train the shared weights by masked distillation without labels (MaskTAS, ICLR 2024)."""

    reconstruction: bool = Field(True, description="Reconstruct masked pixels.")
    distillation: bool = Field(True, description="Predict the teacher's features of the visible patches.")
    beta: float = Field(1.0, ge=0, le=1000, description="Weight of the distillation loss.")
    sampling: Literal["uniform"] = Field("uniform", description="One architecture a step, each gene uniform.")

    @model_validator(mode="after")
    def _an_objective(self) -> Self:
        if not self.reconstruction and not (self.distillation and self.beta):
            raise ValueError("reconstruction and distillation (or its beta) are off: there would be nothing to learn")
        return self


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


class RetrainSpec(OptimSpec):
    """Supervised training of the best candidates; the only part that needs labels."""

    mode: Literal["finetune", "scratch", "none"] | None = Field(
        None, description="`finetune` starts from the supernet's slice. Default: finetune with labels, none without."
    )
    top_k: int = Field(3, ge=1, le=100, description="How many of the best-scored candidates are retrained.")
    layer_decay: float = Field(0.75, gt=0, le=1, description="Rate of a block relative to the one above it.")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    max_shift: float = Field(0.125, ge=0, le=0.5, description="Random translation, as a share of the image side.")
    horizontal_flip: bool = Field(False, description="Mirror at random; wrong for digits and text, right for photos.")


class ExportSpec(Spec):
    """What is written for each retrained network."""

    formats: list[Literal["safetensors"]] = Field(["safetensors"], min_length=1, max_length=1)


class ResourcesSpec(Spec):
    """What one attempt runs on."""

    devices: Literal[1] = 1
    precision: Literal["auto", "fp32"] = "auto"


class BudgetSpec(Spec):
    """Limits of the whole job; when one is reached, the job ends with the best so far."""

    max_wall_seconds: int | None = Field(None, ge=1, le=31_536_000)


class RetrySpec(Spec):
    """How many failures in a row, without a checkpoint between them, end the job."""

    max_failures: int = Field(3, ge=1, le=100)


class SearchSpec(Spec):
    """A search job."""

    name: str | None = Field(None, min_length=1, max_length=200)
    method: Literal["masktas"]
    dataset: Annotated[DatasetRef, _short("id", DatasetRef)]
    teacher: TeacherSpec = Field(default_factory=lambda: TeacherSpec())
    space: Annotated[SpaceSpec, _short("preset", SpaceSpec)] = Field(default_factory=lambda: SpaceSpec())
    constraints: list[ConstraintSpec] = Field(default_factory=list, max_length=16)
    objectives: list[ObjectiveSpec] = Field(
        default_factory=lambda: [
            ObjectiveSpec(metric=ObjectiveMetric.SCORE, goal="max"),
            ObjectiveSpec(metric=ObjectiveMetric.GMACS, goal="min"),
        ],
        min_length=2,
        max_length=3,
    )
    supernet: SupernetSpec = Field(default_factory=lambda: SupernetSpec())
    search: SearchPart = Field(default_factory=lambda: SearchPart())
    retrain: RetrainSpec = Field(default_factory=lambda: RetrainSpec())
    export: ExportSpec = Field(default_factory=lambda: ExportSpec())
    resources: ResourcesSpec = Field(default_factory=lambda: ResourcesSpec())
    budget: BudgetSpec = Field(default_factory=lambda: BudgetSpec())
    retry: RetrySpec = Field(default_factory=lambda: RetrySpec())
    seed: int = Field(0, ge=0, le=MAX_SEED)
    priority: int = Field(0, ge=-100, le=100)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("constraints")
    @classmethod
    def _one_constraint_a_metric(cls, constraints: list[ConstraintSpec]) -> list[ConstraintSpec]:
        if len({c.metric for c in constraints}) < len(constraints):
            raise ValueError("one entry per metric; put min and max into the same entry")
        return constraints

    @field_validator("objectives")
    @classmethod
    def _one_objective_a_metric(cls, objectives: list[ObjectiveSpec]) -> list[ObjectiveSpec]:
        if len({o.metric for o in objectives}) < len(objectives):
            raise ValueError("each metric once")
        return objectives

    @field_validator("metadata")
    @classmethod
    def _little_metadata(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        if len(to_json(metadata)) > MAX_METADATA_BYTES:
            raise ValueError(f"at most {MAX_METADATA_BYTES} bytes of JSON")
        return metadata


class ImportSpec(Spec):
    """A dataset import job: read a folder or a Parquet file below the configured root."""

    path: str = Field(min_length=1, max_length=4096, description="Relative to the import root.")
    format: Literal["auto", "folder", "parquet"] = "auto"
    labels: Literal["auto", "none"] = Field("auto", description="`none`: ignore class folders or the label column.")
