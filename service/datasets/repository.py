"""SQL about imported datasets. Every statement is limited to one owner."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import TERMINAL_STATES, Dataset, DatasetStatus, Job, JobKind


class DatasetRepository:
    """Imported datasets of one owner."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Dataset]:
        return select(Dataset).where(Dataset.owner == self._owner)

    async def get(self, dataset_id: UUID) -> Dataset | None:
        """The dataset with this id."""
        return (await self._session.scalars(self._mine().where(Dataset.id == dataset_id))).one_or_none()

    async def get_kept(self, dataset_id: UUID) -> Dataset | None:
        """The dataset, locked so that nobody deletes it before the transaction ends."""
        query = self._mine().where(Dataset.id == dataset_id).with_for_update(read=True, key_share=True)
        return (await self._session.scalars(query)).one_or_none()

    async def get_locked(self, dataset_id: UUID) -> Dataset | None:
        """The dataset, locked so that nobody starts to use it before the transaction ends."""
        query = self._mine().where(Dataset.id == dataset_id).with_for_update()
        return (await self._session.scalars(query)).one_or_none()

    async def page(self, before: UUID | None, limit: int) -> Sequence[Dataset]:
        """Datasets from the newest to the oldest, those made before the dataset ``before``."""
        query = self._mine()
        if before is not None:
            query = query.where(Dataset.id < before)
        return (await self._session.scalars(query.order_by(Dataset.id.desc()).limit(limit))).all()

    async def newest_ready(self, limit: int) -> Sequence[UUID]:
        """Ids of datasets that a search could name."""
        query = select(Dataset.id).where(Dataset.owner == self._owner, Dataset.status == DatasetStatus.READY)
        return (await self._session.scalars(query.order_by(Dataset.id.desc()).limit(limit))).all()

    async def add(self, name: str, source: dict[str, object]) -> Dataset:
        """Insert the next version of ``name``, still to be validated."""
        # One import of a name at a time may count versions; the lock ends with the transaction.
        lock = func.pg_advisory_xact_lock(func.hashtextextended(f"dataset {self._owner} {name}", 0))
        await self._session.execute(select(lock))
        newest = select(func.max(Dataset.version)).where(Dataset.owner == self._owner, Dataset.name == name)
        version = ((await self._session.execute(newest)).scalar_one() or 0) + 1
        row = Dataset(owner=self._owner, name=name, version=version, source=source)
        self._session.add(row)
        await self._session.flush()
        await self._session.refresh(row)
        return row

    async def import_jobs(self, dataset_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """The job that imports or imported each of the datasets."""
        query = select(Job.dataset_id, Job.id).where(
            Job.owner == self._owner, Job.kind == JobKind.DATASET_IMPORT, Job.dataset_id.in_(dataset_ids)
        )
        return {dataset: job for dataset, job in await self._session.execute(query) if dataset is not None}

    async def jobs_using(self, dataset_id: UUID, limit: int) -> Sequence[UUID]:
        """Jobs that have not ended and need the dataset."""
        query = select(Job.id).where(Job.dataset_id == dataset_id, Job.state.not_in(TERMINAL_STATES))
        return (await self._session.scalars(query.order_by(Job.id).limit(limit))).all()

    async def delete(self, dataset_id: UUID) -> None:
        """Remove the row. Jobs that have ended keep what they know of it in their spec and result."""
        detach = update(Job).where(Job.dataset_id == dataset_id).values(dataset_id=None)
        await self._session.execute(detach.execution_options(synchronize_session=False))
        mine = (Dataset.owner == self._owner, Dataset.id == dataset_id)
        await self._session.execute(delete(Dataset).where(*mine).execution_options(synchronize_session=False))
