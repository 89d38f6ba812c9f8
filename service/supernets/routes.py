"""Routes of supernets: those that jobs have trained or imported, and what can be done with slimmable ones."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Path, Request, Response
from fastapi.openapi.models import Example
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import Caller, JobReader, JobWriter
from service.db.models import Job
from service.errors import (
    ConstraintUnsatisfiable,
    DatasetInvalid,
    IdempotencyInProgress,
    IdempotencyKeyReuse,
    NotFound,
    UnknownWidth,
)
from service.http import StrictRoute, url
from service.idempotency import OnceDep, json_response
from service.jobs.schemas import JobView
from service.jobs.service import show_job
from service.jobs.spec import SlimmableSpec
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id
from service.searches.service import start_search
from service.services import Services, ServicesDep, SessionDep
from service.supernets import service as supernets
from service.supernets.repository import SupernetRepository
from service.supernets.schemas import NewExtraction, NewSupernet, NewTransfer, SupernetList, SupernetView

router = APIRouter(prefix="/supernets", tags=["supernets"], route_class=StrictRoute)

SupernetId = Annotated[str, Path(description="Id of a supernet, `sn_...`.")]

_EXAMPLES: dict[str, Example] = {
    "smallest": {"summary": "Everything by default", "value": {"method": "scala", "dataset": "digits"}}
}

SlimmableBody = Annotated[SlimmableSpec, Body(openapi_examples=_EXAMPLES)]

_ACCEPTED: Responses = {
    202: {
        "description": "The job is queued.",
        "headers": {"Location": {"description": "Path of the job.", "schema": {"type": "string"}}},
    }
}
_ONCE = (IdempotencyInProgress, IdempotencyKeyReuse)
_CREATED: Responses = {**_ACCEPTED, **problems(ConstraintUnsatisfiable, DatasetInvalid, *_ONCE, body=True)}
_EXTRACTED: Responses = {
    **_ACCEPTED,
    **problems(NotFound, UnknownWidth, ConstraintUnsatisfiable, *_ONCE, body=True),
}
_TRANSFERRED: Responses = {**_ACCEPTED, **problems(NotFound, DatasetInvalid, *_ONCE, body=True)}


@router.get("", responses=problems())
async def list_supernets(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> SupernetList:
    """Supernets from the newest to the oldest."""
    part = Slice.of(await SupernetRepository(session, caller.owner).page(cursor_id(after), limit + 1), limit)
    # Pricing dozens of widths of a hundred networks takes up to a second of processor time.
    views = await asyncio.to_thread(lambda: [SupernetView.of(row) for row in part.rows])
    return SupernetList(data=views, has_more=part.has_more, next=part.cursor(by_id))


@router.get("/{supernet_id}", responses=problems(NotFound))
async def get_supernet(supernet_id: SupernetId, caller: JobReader, session: SessionDep) -> SupernetView:
    """One supernet."""
    return SupernetView.of(await supernets.get_supernet(session, caller.owner, supernet_id))


@router.post("", status_code=202, response_model=JobView, responses=_CREATED)
async def create_supernet(
    request: Request, spec: SlimmableBody, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Train a slimmable network and measure its widths: the same job as `POST /search` starts with this body."""

    async def act() -> JSONResponse:
        return await _accepted(request, session, parts, caller, await start_search(session, caller.owner, spec))

    return await once.perform(session, act)


@router.post("/import", status_code=202, response_model=JobView, responses=_CREATED)
async def import_supernet(
    request: Request, new: NewSupernet, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Import a slimmable network from a checkpoint of Scala's released code, below the server's import root.

    The answer is the job that reads it; `result.supernet` is the id once it has succeeded.
    """

    async def act() -> JSONResponse:
        job = await supernets.start_import(session, caller.owner, new, parts.settings.import_root)
        return await _accepted(request, session, parts, caller, job)

    return await once.perform(session, act)


@router.post("/{supernet_id}/extract", status_code=202, response_model=JobView, responses=_EXTRACTED)
async def extract_width(
    request: Request,
    supernet_id: SupernetId,
    asked: NewExtraction,
    caller: JobWriter,
    session: SessionDep,
    parts: ServicesDep,
    once: OnceDep,
) -> Response:
    """Export one width as a plain network: the one that is named, or the best offered one within the limits.

    The answer is the job, which takes seconds; the files are its artifacts.
    """

    async def act() -> JSONResponse:
        job = await supernets.start_extraction(session, caller.owner, supernet_id, asked)
        return await _accepted(request, session, parts, caller, job)

    return await once.perform(session, act)


@router.post("/{supernet_id}/transfer", status_code=202, response_model=JobView, responses=_TRANSFERRED)
async def transfer_supernet(
    request: Request,
    supernet_id: SupernetId,
    asked: NewTransfer,
    caller: JobWriter,
    session: SessionDep,
    parts: ServicesDep,
    once: OnceDep,
) -> Response:
    """Judge the features of every offered width on another dataset, by a linear probe and by nearest neighbours."""

    async def act() -> JSONResponse:
        job = await supernets.start_transfer(session, caller.owner, supernet_id, asked)
        return await _accepted(request, session, parts, caller, job)

    return await once.perform(session, act)


async def _accepted(request: Request, session: AsyncSession, parts: Services, caller: Caller, job: Job) -> JSONResponse:
    view = await show_job(session, caller.owner, job, parts.settings.lease_s)
    return json_response(view, 202, {"Location": url(request, f"/jobs/{view.id}")})
