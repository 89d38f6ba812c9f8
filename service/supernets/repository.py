"""Reading supernets. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Supernet


class SupernetRepository:
    """Supernets of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Supernet]:
        return select(Supernet).where(Supernet.owner == self._owner)

    async def get(self, supernet_id: UUID) -> Supernet | None:
        """The supernet with this id."""
        return (await self._session.scalars(self._mine().where(Supernet.id == supernet_id))).one_or_none()

    async def page(self, before: UUID | None, limit: int) -> Sequence[Supernet]:
        """Supernets from the newest to the oldest, those made before ``before``."""
        query = self._mine()
        if before is not None:
            query = query.where(Supernet.id < before)
        return (await self._session.scalars(query.order_by(Supernet.id.desc()).limit(limit))).all()
