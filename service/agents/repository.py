"""Reading and changing device agents and their orders. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, ScalarResult, Select, and_, func, insert, null, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from search.latency_design import Design
from service.db.models import Agent, ApiKey, Device, DeviceNetwork

_OPEN = and_(Device.latency_table.is_(None), Device.error.is_(None), Device.job_id.is_(None))


def is_alive() -> ColumnElement[bool]:
    """Whether a process speaks for an agent, by the database's clock."""
    return func.coalesce(Agent.lease_until > func.now(), False)


@dataclass(frozen=True, slots=True)
class Known:
    """An agent, and whether a process speaks for it."""

    row: Agent
    alive: bool


class AgentRepository:
    """Agents of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Agent, bool]:
        return select(Agent, is_alive()).where(Agent.owner == self._owner).execution_options(populate_existing=True)

    async def get(self, name: str, *, lock: bool = False) -> Known | None:
        """The agent of this name, locked until the transaction ends if asked for."""
        query = self._mine().where(Agent.name == name)
        if lock:
            query = query.with_for_update()
        found = (await self._session.execute(query)).one_or_none()
        return None if found is None else Known(found[0], found[1])

    async def page(self, after: str | None, limit: int) -> Sequence[Known]:
        """Agents by name, those behind ``after``."""
        query = self._mine()
        if after is not None:
            query = query.where(Agent.name > after)
        return [
            Known(row, alive) for row, alive in await self._session.execute(query.order_by(Agent.name).limit(limit))
        ]

    async def named(self, names: Collection[str]) -> dict[str, Known]:
        """Those of the names that exist."""
        if not names:
            return {}
        found = await self._session.execute(self._mine().where(Agent.name.in_(names)))
        return {row.name: Known(row, alive) for row, alive in found}

    async def count(self) -> int:
        """How many there are."""
        query = select(func.count()).select_from(Agent).where(Agent.owner == self._owner)
        return (await self._session.execute(query)).scalar_one()

    async def hold(self, name: str, session_id: UUID, lease_s: float) -> bool:
        """Renew the lease of a session; False when it is no longer the agent's."""
        statement = (
            update(Agent)
            .where(Agent.owner == self._owner, Agent.name == name, Agent.session == session_id)
            .values(lease_until=func.now() + timedelta(seconds=lease_s), seen_at=func.now())
            .returning(Agent.name)
            .execution_options(synchronize_session=False)
        )
        return (await self._session.execute(statement)).one_or_none() is not None

    async def revoke(self, key_id: UUID) -> None:
        """Make a key invalid for ever."""
        statement = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None)).values(revoked_at=func.now())
        await self._session.execute(statement.execution_options(synchronize_session=False))


class OrderRepository:
    """Orders of one owner's agents: devices with networks to measure."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _orders(self, agent: str) -> Select[Device]:
        query = select(Device).where(Device.owner == self._owner, Device.agent == agent)
        return query.execution_options(populate_existing=True)

    async def oldest_open(self, agent: str) -> Device | None:
        """The order that is to be measured next."""
        query = self._orders(agent).where(_OPEN).order_by(Device.id).limit(1)
        return (await self._session.scalars(query)).one_or_none()

    async def open_ids(self, agent: str, limit: int) -> Sequence[UUID]:
        """Ids of the devices that the agent has yet to measure."""
        query = select(Device.id).where(Device.owner == self._owner, Device.agent == agent, _OPEN)
        return (await self._session.scalars(query.order_by(Device.id).limit(limit))).all()

    async def get_locked(self, agent: str, device_id: UUID) -> Device | None:
        """An order of the agent, locked until the transaction ends."""
        query = self._orders(agent).where(Device.id == device_id).with_for_update()
        return (await self._session.scalars(query)).one_or_none()

    async def add_networks(self, device: Device, chosen: Design) -> None:
        """Write down what is to be measured."""
        fitted = len(chosen.fitted)
        rows = [
            {"device_id": device.id, "n": n, "architecture": arch.to_json(), "held_out": n >= fitted}
            for n, arch in enumerate(chosen.networks)
        ]
        await self._session.execute(insert(DeviceNetwork), rows)

    async def networks(self, device: Device) -> ScalarResult[DeviceNetwork]:
        """The networks of an order, in order."""
        query = select(DeviceNetwork).where(DeviceNetwork.device_id == device.id).order_by(DeviceNetwork.n)
        return await self._session.scalars(query.execution_options(populate_existing=True))

    async def forget_measurements(self, device: Device) -> None:
        """Let everything be measured again."""
        statement = update(DeviceNetwork).where(DeviceNetwork.device_id == device.id).values(latency=null())
        await self._session.execute(statement.execution_options(synchronize_session=False))

    async def progress(self, devices: Collection[UUID]) -> dict[UUID, tuple[int, int]]:
        """How many networks were measured, and of how many, for those of the devices that are orders."""
        if not devices:
            return {}
        query = (
            select(DeviceNetwork.device_id, func.count(DeviceNetwork.latency), func.count())
            .where(DeviceNetwork.device_id.in_(devices))
            .group_by(DeviceNetwork.device_id)
        )
        return {device_id: (measured, planned) for device_id, measured, planned in await self._session.execute(query)}
