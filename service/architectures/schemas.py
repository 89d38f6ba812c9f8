"""What the API takes and shows of architectures."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, WithJsonSchema

from models.architecture import Architecture, json_schema
from search.latency import LatencyTable
from search.metrics import Metric, costs_of, counts_of
from service.artifacts.schemas import ArtifactView
from service.candidates.schemas import CandidateView
from service.schemas import Answer, Json, example

DESCRIPTION_FIELDS = ("classes", "preprocessing", "costs", "scores", "accuracy", "provenance", "files")
"""What an exported ``architecture.json`` tells beside the genes; nothing of it bears on the cost."""

_EXAMPLE = {
    "embed_dim": 192,
    "depth": 12,
    "num_heads": [3] * 12,
    "mlp_ratio": [4.0] * 12,
    "head_dim": 64,
    "img_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "num_classes": 1000,
}


def _document_schema() -> Json:
    schema = json_schema()
    schema.pop("$schema")
    described = {name: {"description": "Ignored."} for name in DESCRIPTION_FIELDS}
    return {**schema, "properties": {**schema["properties"], **described}, "examples": [_EXAMPLE]}


ArchitectureDocument = Annotated[dict[str, Any], WithJsonSchema(_document_schema())]
"""An architecture JSON: the genes alone, or a whole ``architecture.json``."""


class ArchitectureCost(Answer):
    """What one network costs. MACs are multiply-accumulates of one image, attention included."""

    model_config = example(
        {
            "params": 5717416,
            "params_m": 5.717416,
            "macs": 1253683200,
            "gmacs": 1.2536832,
            "weight_bytes": 22869664,
            "weight_mb": 22.869664,
            "peak_mem_bytes": 25287328,
            "peak_mem_mb": 25.287328,
        }
    )

    params: int
    params_m: float
    macs: int
    gmacs: float
    weight_bytes: int = Field(description="Of all parameters as 32-bit floats.")

    weight_mb: float
    peak_mem_bytes: int = Field(description="All weights and the most that the forward pass of one image holds.")
    peak_mem_mb: float
    latency_ms: float | None = Field(None, description="Of one call, as the device's table predicts it.")

    @classmethod
    def of(cls, arch: Architecture, table: LatencyTable | None = None) -> Self:
        """Price a network.

        Raises:
            LatencyError: the table has no entry for a part of it.
        """
        counts, costs = counts_of(arch, table), costs_of(arch, table)
        return cls(
            params=counts[Metric.PARAMS_M],
            macs=counts[Metric.GMACS],
            weight_bytes=counts[Metric.WEIGHT_MB],
            peak_mem_bytes=counts[Metric.PEAK_MEM_MB],
            **costs,
        )


class ArchitectureView(Answer):
    """One network: its genes at the top level, and what is known of it.

    A network that was exported also has `classes`, `preprocessing`, `provenance` and `files`.
    """

    model_config = ConfigDict(extra="allow")

    id: str
    job: str
    schema_version: int
    embed_dim: int
    depth: int
    num_heads: list[int]
    mlp_ratio: list[float]
    head_dim: int
    img_size: int
    patch_size: int
    in_chans: int
    num_classes: int
    pool: str
    rel_pos: bool
    norm_eps: float
    costs: Json
    scores: Json
    accuracy: Json | None
    candidate: CandidateView
    artifacts: list[ArtifactView]
