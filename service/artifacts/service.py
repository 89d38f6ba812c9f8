"""Finding artifacts, and reading small ones."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from service.artifacts.repository import ArtifactRepository
from service.db.models import Artifact
from service.errors import NotFound
from service.ids import IdKind, format_id
from service.store import ArtifactStore


async def get_artifact(session: AsyncSession, owner: str, artifact_id: UUID) -> Artifact:
    """The artifact with this id.

    Raises:
        NotFound: no such artifact.
    """
    artifact = await ArtifactRepository(session, owner).get(artifact_id)
    if artifact is None:
        raise NotFound(f"There is no artifact {format_id(IdKind.ARTIFACT, artifact_id)}.")
    return artifact


async def read_whole(store: ArtifactStore, artifact: Artifact) -> bytes:
    """The bytes of a small artifact such as a JSON document."""
    return b"".join([chunk async for chunk in await store.open_range_async(artifact.sha256)])
