"""SQL about API keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import ApiKey

_USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What a request is checked against. ``use_is_noted``: ``last_used_at`` is recent enough."""

    id: UUID
    owner: str
    sha256: bytes
    scopes: tuple[str, ...]
    is_valid: bool
    use_is_noted: bool


async def find_key(session: AsyncSession, prefix: str) -> StoredKey | None:
    """The key with this public part, also when it is revoked or expired."""
    is_valid = ApiKey.revoked_at.is_(None) & or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now())
    use_is_noted = func.coalesce(ApiKey.last_used_at > func.now() - _USE_NOTED_EVERY, False)
    query = select(ApiKey.id, ApiKey.owner, ApiKey.sha256, ApiKey.scopes, is_valid, use_is_noted)
    row = (await session.execute(query.where(ApiKey.prefix == prefix))).one_or_none()
    return None if row is None else StoredKey(row[0], row[1], row[2], tuple(row[3]), row[4], row[5])


async def note_use(session: AsyncSession, key_id: UUID) -> None:
    """Set ``last_used_at``."""
    await session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id)
        .values(last_used_at=func.now())
        .execution_options(synchronize_session=False)
    )
