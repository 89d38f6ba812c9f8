"""What the API shows of supernets."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from service.db.models import Supernet
from service.ids import IdKind, format_id
from service.pagination import Page
from service.schemas import Answer, Json, UtcTime


class SupernetView(Answer):
    """Shared weights of a space, trained by a job."""

    id: str
    job: str
    method: str
    space: Json
    digest: str = Field(description="SHA-256 of the weights.")
    info: Json
    created_at: UtcTime

    @classmethod
    def of(cls, row: Supernet) -> Self:
        """Show a row."""
        return cls(
            id=format_id(IdKind.SUPERNET, row.id),
            job=format_id(IdKind.JOB, row.job_id),
            method=row.method,
            space=row.space,
            digest=row.sha256,
            info=row.info,
            created_at=row.created_at,
        )


class SupernetList(Page[SupernetView]):
    """Supernets, the newest first."""
