"""Routes of datasets: built-ins and imports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import JobReader, JobWriter
from service.datasets import service as datasets
from service.datasets.builtin import BUILTINS
from service.datasets.repository import DatasetRepository
from service.datasets.schemas import DatasetList, DatasetReport, DatasetView, NewDataset, report_of
from service.db.models import Dataset, DatasetStatus
from service.errors import DatasetInUse, Forbidden, IdempotencyInProgress, IdempotencyKeyReuse, NotFound
from service.http import StrictRoute, url
from service.idempotency import OnceDep, json_response
from service.ids import IdKind, format_id, parse_id
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, decode_cursor, encode_cursor
from service.services import ServicesDep, SessionDep

router = APIRouter(prefix="/datasets", tags=["datasets"], route_class=StrictRoute)

DatasetId = Annotated[str, Path(description="Id of an import, `ds_...`, or the name of a built-in.")]

_CREATED: Responses = {
    202: {
        "description": "The import is queued; the dataset is `validating` until it has ended.",
        "headers": {"Location": {"description": "Path of the dataset.", "schema": {"type": "string"}}},
    },
    **problems(IdempotencyInProgress, IdempotencyKeyReuse, body=True),
}


@router.get("", responses=problems())
async def list_datasets(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> DatasetList:
    """Built-ins first, then imports from the newest to the oldest."""
    if after is None:
        builtins, before = list(BUILTINS.values())[:limit], None
    else:
        builtins, before = [], decode_cursor(after, tuple[UUID | None])[0]
    rows = await DatasetRepository(session, caller.owner).page(before, limit - len(builtins) + 1)
    part = Slice.of(rows, limit - len(builtins))
    shown = [DatasetView.of_builtin(info) for info in builtins]
    shown += await _show(session, caller.owner, part.rows)
    following = encode_cursor(part.rows[-1].id.hex if part.rows else None) if part.has_more else None
    return DatasetList(data=shown, has_more=part.has_more, next=following)


@router.post("", status_code=202, response_model=DatasetView, responses=_CREATED)
async def create_dataset(
    request: Request, new: NewDataset, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Import a dataset from a path below the server's import root; a name that exists gets a further version."""

    async def act() -> JSONResponse:
        row, job = await datasets.start_import(session, caller.owner, new, parts.settings.import_root)
        view = DatasetView.of_row(row, format_id(IdKind.JOB, job.id))
        return json_response(view, 202, {"Location": url(request, f"/datasets/{view.id}")})

    return await once.perform(session, act)


@router.get("/{dataset_id}", responses=problems(NotFound))
async def get_dataset(dataset_id: DatasetId, caller: JobReader, session: SessionDep) -> DatasetView:
    """One dataset."""
    if dataset_id in BUILTINS:
        return DatasetView.of_builtin(BUILTINS[dataset_id])
    (view,) = await _show(session, caller.owner, [await _get(session, caller.owner, dataset_id)])
    return view


@router.get("/{dataset_id}/report", responses=problems(NotFound))
async def get_dataset_report(dataset_id: DatasetId, caller: JobReader, session: SessionDep) -> DatasetReport:
    """What the import found, file by file where something is wrong."""
    if dataset_id in BUILTINS:
        raise NotFound(f"Dataset {dataset_id} is built in and was never imported, so it has no report.")
    row = await _get(session, caller.owner, dataset_id)
    report = report_of(row)
    if report is None:
        raise NotFound(f"Dataset {dataset_id} is {row.status} and has no report; see its import job.")
    return DatasetReport(dataset=dataset_id, status=DatasetStatus(row.status), report=report)


@router.delete("/{dataset_id}", status_code=204, responses=problems(NotFound, DatasetInUse))
async def delete_dataset(dataset_id: DatasetId, caller: JobWriter, session: SessionDep) -> Response:
    """Delete an import. Jobs that have ended keep their results; they cannot be tried again."""
    if dataset_id in BUILTINS:
        raise Forbidden(f"Dataset {dataset_id} is built in and cannot be deleted.")
    await datasets.delete_dataset(session, caller.owner, parse_id(IdKind.DATASET, dataset_id))
    return Response(status_code=204)


async def _get(session: AsyncSession, owner: str, dataset_id: str) -> Dataset:
    row = await DatasetRepository(session, owner).get(parse_id(IdKind.DATASET, dataset_id))
    if row is None:
        raise NotFound(f"There is no dataset {dataset_id}.")
    return row


async def _show(session: AsyncSession, owner: str, rows: Sequence[Dataset]) -> list[DatasetView]:
    imports = await DatasetRepository(session, owner).import_jobs([row.id for row in rows])
    return [
        DatasetView.of_row(row, format_id(IdKind.JOB, imports[row.id]) if row.id in imports else None) for row in rows
    ]
