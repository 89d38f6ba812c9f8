"""What the API shows of artifacts."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from service.db.models import Artifact
from service.ids import IdKind, format_architecture_id, format_id
from service.pagination import Page
from service.schemas import Answer, UtcTime, example


class ArtifactView(Answer):
    """A file that a job has made."""

    model_config = example(
        {
            "id": "art_01980000000070008000000000000000",
            "job": "job_01980000000070008000000000000000",
            "architecture": "arch_01980000000070008000000000000000_17",
            "name": "weights.safetensors",
            "kind": "weights",
            "media_type": "application/octet-stream",
            "size_bytes": 421888,
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "content": "/artifacts/art_01980000000070008000000000000000/content",
            "created_at": "2026-11-30T12:04:00Z",
        }
    )

    id: str
    job: str
    architecture: str | None = Field(description="Id of the candidate that it belongs to; null: of the whole job.")
    name: str
    kind: str
    media_type: str
    size_bytes: int
    sha256: str
    content: str = Field(description="Path of the bytes.")
    created_at: UtcTime

    @classmethod
    def of(cls, row: Artifact) -> Self:
        """Show a row."""
        public_id = format_id(IdKind.ARTIFACT, row.id)
        return cls(
            id=public_id,
            job=format_id(IdKind.JOB, row.job_id),
            architecture=None if row.candidate_n is None else format_architecture_id(row.job_id, row.candidate_n),
            name=row.name,
            kind=row.kind,
            media_type=row.media_type,
            size_bytes=row.size_bytes,
            sha256=row.sha256,
            content=f"/artifacts/{public_id}/content",
            created_at=row.created_at,
        )


class ArtifactList(Page[ArtifactView]):
    """Files of a job, in the order of their ids."""
