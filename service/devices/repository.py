"""Reading and changing devices. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.agents.repository import AgentRepository, OrderRepository
from service.db.models import Device, Job


@dataclass(frozen=True, slots=True)
class OrderState:
    """How far an agent is.

    Attributes:
        measured, planned: networks.
        at_it: whether the agent is alive and works on it.
        lease_until: until when nobody else may; None when the agent does not work on it.
    """

    measured: int
    planned: int
    at_it: bool
    lease_until: datetime | None


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

    async def orders(self, rows: Sequence[Device]) -> dict[UUID, OrderState]:
        """How far agents are with those of the devices that they have yet to measure, by the devices' ids."""
        waiting = [row for row in rows if row.agent is not None and row.latency_table is None]
        progress = await OrderRepository(self._session, self._owner).progress([row.id for row in waiting])
        agents = await AgentRepository(self._session, self._owner).named({row.agent for row in waiting if row.agent})
        found = {}
        for row in waiting:
            measured, planned = progress.get(row.id, (0, 0))
            known = agents.get(row.agent or "")
            at_it = known is not None and known.alive and known.row.session == row.session
            lease_until = known.row.lease_until if known is not None and at_it else None
            found[row.id] = OrderState(measured, planned, at_it, lease_until)
        return found

    async def delete(self, device_id: UUID) -> None:
        """Remove a row. Jobs keep the tables that they were given."""
        mine = (Device.owner == self._owner, Device.id == device_id)
        await self._session.execute(delete(Device).where(*mine).execution_options(synchronize_session=False))
