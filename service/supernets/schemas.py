"""What the API shows and takes of supernets."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from models.slimmable import Slimmable
from search.width_limits import WidthCosts
from service.db.models import Supernet
from service.ids import IdKind, format_id
from service.jobs.spec import ExtractRequest, SupernetImportSpec, TransferRequest
from service.pagination import Page
from service.schemas import Answer, Json, UtcTime, example
from service.supernets.info import ServedWidth, widths_of


class NewExtraction(ExtractRequest):
    """Take one width out of a slimmable network, as a network of its own."""

    model_config = example({"max_params_m": 0.1})


class NewSupernet(SupernetImportSpec):
    """Import a slimmable network from a checkpoint of Scala's released code."""

    model_config = example({"name": "Scala-S", "path": "scala_deit_small.pth", "smallest": 0.25, "step": 0.0625})


class NewTransfer(TransferRequest):
    """Judge the features of every offered width on other images."""

    model_config = example({"dataset": "digits", "k": 20})


class WidthView(Answer):
    """A width of a slimmable network."""

    ratio: float = Field(description="Share of the whole network's width.")
    width: int = Field(description="Channels of a token.")
    head_dim: int = Field(description="Channels of a head.")
    accuracy: float | None = Field(description="On validation images; null where nothing was measured.")
    interpolated: bool = Field(description="Not of the grid: training sampled it never or rarely.")
    offered: bool = Field(description="It can be extracted; false where it falls too far below its neighbours.")
    params_m: float
    gmacs: float
    weight_mb: float = Field(description="Weights as 32-bit floats, in 10^6 bytes.")
    peak_mem_mb: float = Field(description="Weights and live tensors of one image, in 10^6 bytes.")

    @classmethod
    def of(cls, width: ServedWidth, costs: WidthCosts) -> Self:
        """Show a width."""
        told = {name: getattr(width, name) for name in ServedWidth.__slots__}
        return cls(**told, **costs.of(width.head_dim))


class SupernetView(Answer):
    """Shared weights of a space, or of a slimmable network, trained or imported by a job."""

    id: str
    job: str
    method: str
    space: Json = Field(description="Of a slimmable network: `largest`, `head_dims` that were trained, and slicing.")
    digest: str = Field(description="SHA-256 of the weights.")
    widths: list[WidthView] = Field(description="Of a slimmable network, the smallest first; empty for others.")
    info: Json
    created_at: UtcTime

    @classmethod
    def of(cls, row: Supernet) -> Self:
        """Show a row."""
        widths = widths_of(row)
        costs = WidthCosts(Slimmable.from_json(row.space), [w.head_dim for w in widths]) if widths else None
        return cls(
            id=format_id(IdKind.SUPERNET, row.id),
            job=format_id(IdKind.JOB, row.job_id),
            method=row.method,
            space=row.space,
            digest=row.sha256,
            widths=[WidthView.of(width, costs) for width in widths] if costs else [],
            info=row.info,
            created_at=row.created_at,
        )


class SupernetList(Page[SupernetView]):
    """Supernets, the newest first."""
