"""Reading and changing devices. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Device, Job


class DeviceRepository:
    """Devices of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Device]:
        return select(Device).where(Device.owner == self._owner)

    async def get(self, device_id: UUID) -> Device | None:
        """The device with this id."""
        return (await self._session.scalars(self._mine().where(Device.id == device_id))).one_or_none()

    async def get_locked(self, device_id: UUID) -> Device | None:
        """The device, locked so that nobody changes it before the transaction ends."""
        query = self._mine().where(Device.id == device_id).with_for_update()
        return (await self._session.scalars(query)).one_or_none()

    async def page(self, before: UUID | None, limit: int) -> Sequence[Device]:
        """Devices from the newest to the oldest, those made before ``before``."""
        query = self._mine()
        if before is not None:
            query = query.where(Device.id < before)
        return (await self._session.scalars(query.order_by(Device.id.desc()).limit(limit))).all()

    async def newest_ready(self, limit: int) -> Sequence[UUID]:
        """Ids of devices that have a table."""
        query = select(Device.id).where(Device.owner == self._owner, Device.latency_table.is_not(None))
        return (await self._session.scalars(query.order_by(Device.id.desc()).limit(limit))).all()

    async def add(self, row: Device) -> Device:
        """Insert a row."""
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        return row

    async def jobs(self, rows: Sequence[Device]) -> dict[UUID, Job]:
        """The jobs that measure or have measured devices, by their ids."""
        wanted = [row.job_id for row in rows if row.job_id is not None]
        if not wanted:
            return {}
        return {job.id: job for job in await self._session.scalars(select(Job).where(Job.id.in_(wanted)))}

    async def delete(self, device_id: UUID) -> None:
        """Remove a row. Jobs keep the tables that they were given."""
        mine = (Device.owner == self._owner, Device.id == device_id)
        await self._session.execute(delete(Device).where(*mine).execution_options(synchronize_session=False))
