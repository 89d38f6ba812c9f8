"""Reading teachers. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Teacher


class TeacherRepository:
    """Teachers of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Teacher]:
        return select(Teacher).where(Teacher.owner == self._owner)

    async def get(self, teacher_id: UUID) -> Teacher | None:
        """The teacher with this id."""
        return (await self._session.scalars(self._mine().where(Teacher.id == teacher_id))).one_or_none()

    async def page(self, before: UUID | None, limit: int) -> Sequence[Teacher]:
        """Teachers from the newest to the oldest, those made before ``before``."""
        query = self._mine()
        if before is not None:
            query = query.where(Teacher.id < before)
        return (await self._session.scalars(query.order_by(Teacher.id.desc()).limit(limit))).all()
