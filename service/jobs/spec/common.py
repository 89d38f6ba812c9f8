"""What jobs of all search methods have in common."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import to_json

from service.jobs.retries import RETRIED_BY_DEFAULT, RetryCode
from service.jobs.spec.base import Spec, short_form
from service.jobs.spec.data import DatasetRef
from service.jobs.spec.space import ConstraintSpec, ObjectiveMetric, ObjectiveSpec

MAX_METADATA_BYTES = 16_384

MAX_SEED = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8259, section 6)."""


class ResourcesSpec(Spec):
    """What one attempt runs on."""

    devices: Literal[1] = 1
    precision: Literal["auto", "fp32"] = "auto"


class BudgetSpec(Spec):
    """Limits of the whole job; when one is reached, the job ends with the best so far."""

    max_wall_seconds: int | None = Field(
        None, ge=1, le=31_536_000, description="Running time over all attempts; waiting and pauses cost nothing."
    )
    max_device_hours: float | None = Field(
        None, gt=0, le=1e6, description="Time of devices over all attempts, those of helpers included."
    )


class RetrySpec(Spec):
    """Which failed attempts are followed by another one, from the last checkpoint on."""

    max_failures: int = Field(
        3, ge=1, le=100, description="Failures in a row, without a checkpoint between them, that end the job."
    )
    max_attempts: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Attempts that failed or were lost, with or without checkpoints, that end the job; null: no limit. "
        "Planned stops do not count.",
    )
    on: list[RetryCode] = Field(
        default_factory=lambda: list(RETRIED_BY_DEFAULT),
        max_length=20,
        description="Codes of errors that are tried again by themselves; empty: none. Any job that failed can be tried "
        "again by `POST /jobs/{id}/retry`.",
    )


class RecoverySpec(Spec):
    """What a training does about numbers that are none and about memory that runs out, without losing the attempt."""

    rollbacks: int = Field(
        3,
        ge=0,
        le=20,
        description="How often a training whose loss or weights become NaN or infinite goes back to its last sound "
        "point (there is one each twentieth of its steps) and goes on with a lower rate; 0: it fails at once.",
    )
    rate_factor: float = Field(
        0.5, ge=0.01, lt=1, description="Of the learning rate at each roll-back, until the training ends."
    )
    out_of_memory: Literal["split", "fail"] = Field(
        "split",
        description="`split`: a step that does not fit is computed in parts, with the same images and the same "
        "gradient up to rounding. `fail`: the job fails, and the error suggests a batch size.",
    )


class WarmStartSpec(Spec):
    """What a search takes over instead of training it."""

    supernet: str = Field(
        min_length=1, max_length=100, description="Id of a supernet, `sn_...`, whose teacher comes with it."
    )


class JobSpec(Spec):
    """What a search of any method says of its job, its data and its limits."""

    name: str | None = Field(None, min_length=1, max_length=200)
    dataset: Annotated[DatasetRef, short_form("id", DatasetRef)]
    constraints: list[ConstraintSpec] = Field(default_factory=list, max_length=16)
    objectives: list[ObjectiveSpec] = Field(
        default_factory=lambda: [
            ObjectiveSpec(metric=ObjectiveMetric.SCORE, goal="max"),
            ObjectiveSpec(metric=ObjectiveMetric.GMACS, goal="min"),
        ],
        min_length=2,
        max_length=4,
    )
    resources: ResourcesSpec = Field(default_factory=lambda: ResourcesSpec())
    budget: BudgetSpec = Field(default_factory=lambda: BudgetSpec())
    retry: RetrySpec = Field(default_factory=lambda: RetrySpec())
    recovery: RecoverySpec = Field(default_factory=lambda: RecoverySpec())
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
