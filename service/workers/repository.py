"""Reading workers. They belong to the deployment, not to an owner."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import any_, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Worker
from service.forecast.calibration import Calibration
from service.workers.schemas import WorkerView


class WorkerRepository:
    """Workers that have said that they live; one that is silent for ``lost_after_s`` seconds no longer counts."""

    def __init__(self, session: AsyncSession, lost_after_s: float) -> None:
        self._session = session
        self._alive = Worker.heartbeat_at > func.now() - timedelta(seconds=lost_after_s)

    async def page(self, after: str | None, limit: int) -> Sequence[WorkerView]:
        """Workers by name, those behind ``after``."""
        query = select(Worker, self._alive).order_by(Worker.name).limit(limit)
        if after is not None:
            query = query.where(Worker.name > after)
        return [
            WorkerView(
                name=row.name,
                alive=alive,
                draining=row.draining,
                deaf=row.deaf,
                queues=row.queues,
                slots=row.slots,
                busy=row.busy,
                info=row.info,
                started_at=row.started_at,
                heartbeat_at=row.heartbeat_at,
            )
            for row, alive in await self._session.execute(query)
        ]

    async def calibrations(self, queue: str) -> list[Calibration]:
        """What the living workers of a queue have measured of themselves."""
        query = select(Worker.info).where(self._alive, ~Worker.draining, literal(queue) == any_(Worker.queues))
        found = [Calibration.of_worker(info) for info in await self._session.scalars(query)]
        return [calibration for calibration in found if calibration is not None]

    async def count_consuming(self) -> int:
        """Number of workers that are alive and take jobs."""
        query = select(func.count()).select_from(Worker).where(self._alive, ~Worker.draining, ~Worker.deaf)
        return (await self._session.execute(query)).scalar_one()

    async def count_deaf(self) -> int:
        """Number of workers that are alive and would take jobs, if messages reached them."""
        query = select(func.count()).select_from(Worker).where(self._alive, ~Worker.draining, Worker.deaf)
        return (await self._session.execute(query)).scalar_one()
