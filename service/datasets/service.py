"""What can be done with datasets: find the one that a search names, import, delete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.datasets.repository import DatasetRepository
from service.datasets.schemas import NewDataset
from service.db.models import Dataset, DatasetStatus, Job, JobKind
from service.errors import DatasetInUse, DatasetInvalid, ErrorItem, NotFound, ValidationFailed
from service.ids import BadId, IdKind, format_id, parse_id
from service.imports import confined_path
from service.jobs import transitions
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.values import NewJob

# As many names as help; a user with more datasets looks them up.
_NAMED = 20


async def find_dataset(session: AsyncSession, owner: str, reference: str) -> DatasetInfo:
    """The dataset that a search names, which nobody can delete before the transaction ends.

    Raises:
        ValidationFailed: no such dataset, or it is not ready yet.
        DatasetInvalid: its import was rejected.
    """
    if reference in BUILTINS:
        return BUILTINS[reference]
    datasets = DatasetRepository(session, owner)
    try:
        row = await datasets.get_kept(parse_id(IdKind.DATASET, reference))
    except BadId:
        row = None
    if row is None:
        allowed = [*BUILTINS, *(format_id(IdKind.DATASET, known) for known in await datasets.newest_ready(_NAMED))]
        detail = f"there is no dataset {reference!r}; name a built-in, or a dataset of GET /datasets by its id"
        raise ValidationFailed(
            f"dataset: {detail}.", errors=[ErrorItem("/dataset/id", "unknown_dataset", detail, allowed)]
        )
    match DatasetStatus(row.status):
        case DatasetStatus.READY:
            return DatasetInfo.from_row(row)
        case DatasetStatus.VALIDATING:
            detail = f"dataset {row.name!r} is still being validated; wait until it is ready"
            raise ValidationFailed(f"{detail}.", errors=[ErrorItem("/dataset/id", "dataset_not_ready", detail)])
        case DatasetStatus.REJECTED:
            detail = f"the import of dataset {row.name!r} was rejected; GET /datasets/{reference} says why"
            raise DatasetInvalid(f"{detail}.", errors=[ErrorItem("/dataset/id", "dataset_invalid", detail)])


async def start_import(
    session: AsyncSession, owner: str, new: NewDataset, import_root: Path | None
) -> tuple[Dataset, Job]:
    """Add a version of the dataset and the job that reads it. The caller commits.

    Raises:
        ValidationFailed: the path is not a file or folder below the import root.
    """
    path = await asyncio.to_thread(confined_path, new.source.path, import_root)
    source = new.source.model_copy(update={"path": path}).model_dump(mode="json")
    row = await DatasetRepository(session, owner).add(new.name, source)
    request = NewJob(
        owner=owner,
        kind=JobKind.DATASET_IMPORT,
        name=f"import of {row.name}, version {row.version}",
        spec=source,
        queue=DEFAULT_QUEUE,
        seed=0,
        dataset_id=row.id,
    )
    return row, await session.run_sync(transitions.enqueue, request)


async def delete_dataset(session: AsyncSession, owner: str, dataset_id: UUID) -> None:
    """Delete an imported dataset and commit. Its blob stays in the store, where others may have the same content.

    Raises:
        NotFound: no such dataset.
        DatasetInUse: jobs that have not ended need it.
    """
    datasets = DatasetRepository(session, owner)
    public_id = format_id(IdKind.DATASET, dataset_id)
    if await datasets.get_locked(dataset_id) is None:
        raise NotFound(f"There is no dataset {public_id}.")
    users = [format_id(IdKind.JOB, job) for job in await datasets.jobs_using(dataset_id, _NAMED)]
    if users:
        raise DatasetInUse(
            f"Dataset {public_id} is needed by {', '.join(users)}; wait for these jobs or cancel them first.",
            extra={"jobs": users},
        )
    await datasets.delete(dataset_id)
    await session.commit()
