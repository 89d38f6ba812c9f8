"""What the API takes and shows of datasets."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from service.datasets.info import DatasetInfo
from service.db.models import Dataset, DatasetStatus
from service.ids import IdKind, format_id
from service.jobs.spec import ImportSpec, Spec
from service.pagination import Page
from service.schemas import Answer, Json, StoredError, UtcTime, example


class NewDataset(Spec):
    """Import a dataset, or a further version of one when the name is taken."""

    model_config = example(
        {"name": "line-3 defects", "source": {"path": "defects/2026-11", "format": "folder", "labels": "auto"}}
    )

    name: str = Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")
    source: ImportSpec = Field(description="Where the images lie: a folder with one folder per class, or Parquet.")


class DatasetView(Answer):
    """One version of a dataset."""

    model_config = example(
        {
            "id": "digits",
            "name": "digits",
            "version": 1,
            "kind": "builtin",
            "status": "ready",
            "digest": "b269f64319a2c684c95f1bbe4c003e15fb6d963796ccebfa169cd2e0024bbb17",
            "labelled": True,
            "classes": ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
            "counts": {"images": 1797},
            "image": {"channels": 1, "min_side": 8},
            "size_bytes": None,
            "source": None,
            "report": None,
            "job": None,
            "error": None,
            "created_at": None,
        }
    )

    id: str = Field(description="What a search names it by.")
    name: str
    version: int
    kind: Literal["builtin", "imported"]
    status: DatasetStatus
    digest: str | None = Field(description="SHA-256 of the content; null until it is ready.")
    labelled: bool | None
    classes: list[str] = Field(description="In the order of the labels.")
    counts: Json = Field(description="`images`, and `splits` and `classes` with a number for each.")
    image: Json = Field(description="`channels`, `min_side` and `max_side` in pixels.")
    size_bytes: int | None
    source: Json | None
    report: str | None = Field(description="Path of the import's findings.")
    job: str | None = Field(description="The import, while the service remembers it.")
    error: StoredError | None
    created_at: UtcTime | None

    @classmethod
    def of_builtin(cls, info: DatasetInfo) -> Self:
        """Show a built-in."""
        return cls(
            id=info.reference,
            name=info.name,
            version=1,
            kind="builtin",
            status=DatasetStatus.READY,
            digest=info.digest,
            labelled=info.labelled,
            classes=list(info.classes),
            counts={"images": info.images},
            image={"channels": info.channels, "min_side": info.min_side},
            size_bytes=None,
            source=None,
            report=None,
            job=None,
            error=None,
            created_at=None,
        )

    @classmethod
    def of_row(cls, row: Dataset, job: str | None) -> Self:
        """Show an import; ``job`` is the id of the job that reads it."""
        public_id = format_id(IdKind.DATASET, row.id)
        is_ready = row.status == DatasetStatus.READY
        return cls(
            id=public_id,
            name=row.name,
            version=row.version,
            kind="imported",
            status=DatasetStatus(row.status),
            digest=row.sha256,
            labelled=bool(row.classes) if is_ready else None,
            classes=row.classes,
            counts=row.counts,
            image=row.image,
            size_bytes=row.size_bytes,
            source=row.source,
            report=f"/datasets/{public_id}/report" if report_of(row) is not None else None,
            job=job,
            error=StoredError(**{key: value for key, value in row.error.items() if key != REPORT})
            if row.error
            else None,
            created_at=row.created_at,
        )


REPORT = "report"


def report_of(row: Dataset) -> Json | None:
    """What the import found; one that was rejected leaves its findings in the error."""
    found: Json | None = row.report if row.report is not None else (row.error or {}).get(REPORT)
    return found


class DatasetList(Page[DatasetView]):
    """Datasets: built-ins first, then imports from the newest to the oldest."""


class DatasetReport(Answer):
    """What the import found."""

    dataset: str
    status: DatasetStatus
    report: Json
