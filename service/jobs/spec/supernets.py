"""Bodies of jobs on trained slimmable networks: take a width out, bring one in, carry one to other images."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.architecture import MAX_HEADS
from search.constraints import MAX_LIMIT
from service.jobs.spec.base import Spec, short_form
from service.jobs.spec.common import MAX_SEED
from service.jobs.spec.data import DatasetRef

_Limit = Annotated[float, Field(gt=0, le=MAX_LIMIT)]
_SupernetId = Annotated[str, Field(min_length=1, max_length=100, description="Id of a supernet, `sn_...`.")]


EXTRACT_LIMITS = ("max_params_m", "max_gmacs", "max_weight_mb", "max_peak_mem_mb", "max_latency_ms")
"""Fields that limit what an extraction may choose."""


class ExtractRequest(Spec):
    """Which width: the one with this `width` or `ratio`, or the best offered one within all limits given."""

    width: int | None = Field(None, ge=1, le=8192, description="Channels of a token.")
    ratio: float | None = Field(None, gt=0, le=1, description="Share of the whole network's width.")
    max_params_m: _Limit | None = Field(None, description="In million parameters.")
    max_gmacs: _Limit | None = Field(None, description="In 10^9 multiply-accumulates of one image.")
    max_weight_mb: _Limit | None = Field(None, description="Weights as 32-bit floats, in 10^6 bytes.")
    max_peak_mem_mb: _Limit | None = Field(None, description="Weights and live tensors of one image, in 10^6 bytes.")
    max_latency_ms: _Limit | None = Field(
        None, description="Median time of one forward pass, measured on the worker with the exported network."
    )
    device: Literal["cpu"] = Field("cpu", description="That latency is measured on.")
    batch_size: int = Field(1, ge=1, le=1024, description="Images of a forward pass whose latency is measured.")

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the limits that are given."""
        return tuple(name for name in EXTRACT_LIMITS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in ("width", "ratio") if getattr(self, name) is not None] + (
            ["limits"] * bool(self.limits)
        )
        if len(ways) != 1:
            found = " and ".join(ways) or "nothing"
            raise ValueError(f"exactly one of width, ratio, and limits ({', '.join(EXTRACT_LIMITS)}); found {found}")
        return self


class ExtractSpec(ExtractRequest):
    """An extraction job.

    ``head_dims`` are the widths of a head that come into question, the best first: one for a width or ratio, else
    those within the limits on counts; the first of them that meets the limit on latency is taken.
    """

    supernet: _SupernetId
    head_dims: list[int] = Field(min_length=1, max_length=1024)


class SupernetImportSpec(Spec):
    """Import a slimmable network from a checkpoint of Scala's released code."""

    name: str | None = Field(None, min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")
    path: str = Field(min_length=1, max_length=4096, description="A file, relative to the import root.")
    smallest: float | None = Field(
        None, gt=0, lt=1, description="The least width that was trained; the checkpoint's own unless given."
    )
    step: float | None = Field(
        None, gt=0, lt=1, description="From one trained width to the next; the checkpoint's own unless given."
    )
    num_heads: int | None = Field(
        None, ge=1, le=MAX_HEADS, description="Attention heads of each block; the checkpoint's own unless given."
    )
    dataset: Annotated[DatasetRef, short_form("id", DatasetRef)] | None = Field(
        None, description="Labelled images with the checkpoint's classes, in its order, to measure the widths on."
    )


class TransferRequest(Spec):
    """Judge the features of every offered width on other images: by a linear probe and by nearest neighbours."""

    dataset: Annotated[DatasetRef, short_form("id", DatasetRef)]
    k: int = Field(20, ge=1, le=1000, description="Nearest neighbours that vote.")
    batch_size: int = Field(256, ge=1, le=65_536)
    seed: int = Field(0, ge=0, le=MAX_SEED)


class TransferSpec(TransferRequest):
    """A transfer job."""

    supernet: _SupernetId
