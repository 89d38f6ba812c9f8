"""What the API shows of teachers."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from service.db.models import Teacher
from service.ids import IdKind, format_id
from service.pagination import Page
from service.schemas import Answer, Json, UtcTime


class TeacherView(Answer):
    """A frozen network that students learn from."""

    id: str
    job: str
    name: str
    architecture: Json
    digest: str = Field(description="SHA-256 of the weights.")
    info: Json
    created_at: UtcTime

    @classmethod
    def of(cls, row: Teacher) -> Self:
        """Show a row."""
        return cls(
            id=format_id(IdKind.TEACHER, row.id),
            job=format_id(IdKind.JOB, row.job_id),
            name=row.name,
            architecture=row.architecture,
            digest=row.sha256,
            info=row.info,
            created_at=row.created_at,
        )


class TeacherList(Page[TeacherView]):
    """Teachers, the newest first."""
