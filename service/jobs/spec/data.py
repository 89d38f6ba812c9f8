"""Which images a job reads."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.datasets.findings import FindingCode
from service.jobs.spec.base import Spec


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


class ImportSpec(Spec):
    """A dataset import job: read a folder, an archive or a Parquet file below the configured root."""

    path: str = Field(min_length=1, max_length=4096, description="Relative to the import root.")
    format: Literal["auto", "folder", "parquet"] = Field(
        "auto", description="The layout, in a folder or archive (zip, tar, tar.gz, tar.bz2, tar.zst) alike."
    )
    labels: Literal["auto", "none"] = Field("auto", description="`none`: ignore class folders or the label column.")
    max_skipped: float = Field(
        0.05, ge=0, le=0.9, description="Share of images that may be left out as unusable; 0: reject at the first."
    )
    reject_on: list[Annotated[FindingCode, Field(strict=False)]] = Field(
        [], max_length=len(FindingCode), description="Kinds of findings that reject the dataset, such as `leakage`."
    )
