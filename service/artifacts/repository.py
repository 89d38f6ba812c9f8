"""Reading artifacts. Every statement is limited to one owner. Only promoted files have rows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Artifact


class ArtifactRepository:
    """Artifacts of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Artifact]:
        return select(Artifact).where(Artifact.owner == self._owner)

    async def get(self, artifact_id: UUID) -> Artifact | None:
        """The artifact with this id."""
        return (await self._session.scalars(self._mine().where(Artifact.id == artifact_id))).one_or_none()

    async def page(self, job_id: UUID, after: UUID | None, limit: int) -> Sequence[Artifact]:
        """Artifacts of a job, those behind ``after``."""
        query = self._mine().where(Artifact.job_id == job_id)
        if after is not None:
            query = query.where(Artifact.id > after)
        return (await self._session.scalars(query.order_by(Artifact.id).limit(limit))).all()

    async def of_candidate(self, job_id: UUID, n: int | None) -> Sequence[Artifact]:
        """The files of one network, by name; ``None``: those of the job as a whole."""
        query = self._mine().where(Artifact.job_id == job_id, Artifact.candidate_n == n)
        return (await self._session.scalars(query.order_by(Artifact.name))).all()
