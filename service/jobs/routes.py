"""Routes of jobs: list, show, wait, act, and what a job has reported."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import Caller, JobReader, JobWriter
from service.db.models import JobKind
from service.errors import (
    ConstraintUnsatisfiable,
    DatasetInvalid,
    IdempotencyInProgress,
    IdempotencyKeyReuse,
    InvalidState,
    NotFound,
)
from service.http import StrictRoute, matches_etag, preferred_wait_s, url
from service.idempotency import Once, OnceDep, json_response
from service.ids import IdKind, parse_id
from service.jobs import service as jobs
from service.jobs.extension import ExtendRequest
from service.jobs.repository import JobFilter, JobRepository
from service.jobs.schemas import CheckpointList, CheckpointView, JobList, JobView, MetricList, MetricView
from service.jobs.states import Action, ShownStatus
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id, cursor_number
from service.searches.replay import replay
from service.services import Services, ServicesDep, SessionDep

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=StrictRoute)

LONGEST_WAIT_S = 60
"""Longer waits are cut to this: proxies close connections that stay silent."""

JobId = Annotated[str, Path(description="Id of a job, `job_...`.")]

_ACTION_PROBLEMS = problems(NotFound, InvalidState, IdempotencyInProgress, IdempotencyKeyReuse)


@router.get("", responses=problems())
async def list_jobs(
    caller: JobReader,
    session: SessionDep,
    parts: ServicesDep,
    status: Annotated[ShownStatus | None, Query(description="Only jobs that are so now.")] = None,
    kind: Annotated[JobKind | None, Query(description="Only jobs of this kind.")] = None,
    created_after: Annotated[AwareDatetime | None, Query(description="With a time zone, such as `Z`.")] = None,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
) -> JobList:
    """Jobs from the newest to the oldest."""
    wanted = JobFilter(status=status, kind=kind, created_after=created_after)
    part = Slice.of(await JobRepository(session, caller.owner).page(wanted, cursor_id(after), limit + 1), limit)
    views = await jobs.show_jobs(session, caller.owner, part.rows, parts.settings.lease_s)
    return JobList(data=views, has_more=part.has_more, next=part.cursor(by_id))


@router.get(
    "/{job_id}",
    response_model=JobView,
    responses={304: {"description": "The job is as `If-None-Match` knows it."}, **problems(NotFound)},
)
async def get_job(
    request: Request,
    job_id: JobId,
    caller: JobReader,
    parts: ServicesDep,
    prefer: Annotated[
        str | None,
        Header(
            description=f"`wait=N`: answer at the job's next change, at the latest after N (up to {LONGEST_WAIT_S}) "
            "seconds. With `If-None-Match`: as soon as the job differs from that. A job that is done never waits."
        ),
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`ETag` of an earlier answer.")] = None,
) -> Response:
    """A job as it is now, or after its next change."""
    first: list[str] = []

    def seen(view: JobView) -> bool:
        etag = jobs.job_etag(view)
        if if_none_match is not None:
            return matches_etag(request, etag)
        first.append(etag)
        return etag == first[0]

    wait_s = preferred_wait_s(request, LONGEST_WAIT_S) if prefer is not None else 0
    view = await jobs.wait_for_job(
        parts,
        caller.owner,
        parse_id(IdKind.JOB, job_id),
        seen=seen,
        wait_s=wait_s,
        is_gone=request.is_disconnected,
    )
    etag = jobs.job_etag(view)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if wait_s:
        headers["Preference-Applied"] = f"wait={wait_s}"
    if matches_etag(request, etag):
        return Response(status_code=304, headers=headers)
    return json_response(view, headers=headers)


async def _act(
    session: AsyncSession, parts: Services, caller: Caller, once: Once, job_id: str, action: Action
) -> JSONResponse:
    async def act() -> JSONResponse:
        job = await jobs.act_on_job(session, caller.owner, parse_id(IdKind.JOB, job_id), action)
        view = await jobs.show_job(session, caller.owner, job, parts.settings.lease_s)
        return json_response(view, 202)

    return await once.perform(session, act)


@router.post("/{job_id}/cancel", status_code=202, response_model=JobView, responses=_ACTION_PROBLEMS)
async def cancel_job(
    job_id: JobId, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Stop the job for good: at once while it waits, else as soon as its worker has written a checkpoint."""
    return await _act(session, parts, caller, once, job_id, Action.CANCEL)


@router.post("/{job_id}/pause", status_code=202, response_model=JobView, responses=_ACTION_PROBLEMS)
async def pause_job(
    job_id: JobId, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Stop the job until it is resumed; it goes on from its last checkpoint then."""
    return await _act(session, parts, caller, once, job_id, Action.PAUSE)


@router.post("/{job_id}/resume", status_code=202, response_model=JobView, responses=_ACTION_PROBLEMS)
async def resume_job(
    job_id: JobId, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Queue a paused job again, or take back a wish to pause."""
    return await _act(session, parts, caller, once, job_id, Action.RESUME)


@router.post("/{job_id}/retry", status_code=202, response_model=JobView, responses=_ACTION_PROBLEMS)
async def retry_job(
    job_id: JobId, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Queue a failed or cancelled job again; it goes on from its last checkpoint."""
    return await _act(session, parts, caller, once, job_id, Action.RETRY)


@router.post(
    "/{job_id}/replay",
    status_code=202,
    response_model=JobView,
    responses={
        202: {
            "description": "The new job is queued.",
            "headers": {"Location": {"description": "Path of the new job.", "schema": {"type": "string"}}},
        },
        **_ACTION_PROBLEMS,
        **problems(ConstraintUnsatisfiable, DatasetInvalid, NotFound, InvalidState, IdempotencyInProgress, body=True),
    },
)
async def replay_job(
    request: Request, job_id: JobId, caller: JobWriter, session: SessionDep, parts: ServicesDep, once: OnceDep
) -> Response:
    """Do the same once more: a new job with the same spec and seed, from the beginning. The old one stays as it is.

    For searches, extractions and transfers. On the same versions and machine it gives the same numbers.
    """

    async def act() -> JSONResponse:
        job = await replay(
            session, caller.owner, await jobs.get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
        )
        view = await jobs.show_job(session, caller.owner, job, parts.settings.lease_s)
        return json_response(view, 202, {"Location": url(request, f"/jobs/{view.id}")})

    return await once.perform(session, act)


@router.post(
    "/{job_id}/extend",
    status_code=202,
    response_model=JobView,
    responses={
        201: {
            "model": JobView,
            "description": "The job has succeeded: this is the new one that goes on with its search.",
            "headers": {"Location": {"description": "Path of the new job.", "schema": {"type": "string"}}},
        },
        202: {"description": "The job was paused and is queued again."},
        **problems(NotFound, InvalidState, IdempotencyInProgress, IdempotencyKeyReuse, body=True),
    },
)
async def extend_job(
    request: Request,
    job_id: JobId,
    wanted: Annotated[ExtendRequest, Body()],
    caller: JobWriter,
    session: SessionDep,
    parts: ServicesDep,
    once: OnceDep,
) -> Response:
    """Let a search go on longer: it ends as if the new totals had been asked for at first.

    A paused job goes on itself. One that has succeeded stays as it is: a new job takes over its supernet and all that
    it has scored, and does baseline, retraining, export and report anew; `max_wall_seconds` is its own time then.
    """
    asked = parse_id(IdKind.JOB, job_id)

    async def act() -> JSONResponse:
        job = await jobs.extend_job(session, caller.owner, asked, wanted)
        view = await jobs.show_job(session, caller.owner, job, parts.settings.lease_s)
        if job.id == asked:
            return json_response(view, 202)
        return json_response(view, 201, {"Location": url(request, f"/jobs/{view.id}")})

    return await once.perform(session, act)


@router.get("/{job_id}/checkpoints", responses=problems(NotFound))
async def list_checkpoints(
    job_id: JobId,
    caller: JobReader,
    session: SessionDep,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
) -> CheckpointList:
    """Points from which the job can go on, from the newest to the oldest."""
    job = await jobs.get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
    rows = await JobRepository(session, caller.owner).checkpoints(job.id, cursor_number(after), limit + 1)
    part = Slice.of(rows, limit)
    views = [CheckpointView.of(row) for row in part.rows]
    return CheckpointList(data=views, has_more=part.has_more, next=part.cursor(lambda row: (row.n,)))


@router.get("/{job_id}/metrics", responses=problems(NotFound))
async def list_metrics(
    job_id: JobId,
    caller: JobReader,
    session: SessionDep,
    stage: Annotated[str | None, Query(pattern=r"^[\w.-]{1,100}$", description="Only of this stage.")] = None,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
) -> MetricList:
    """Numbers that the job reported, the oldest first."""
    job = await jobs.get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
    rows = await JobRepository(session, caller.owner).metrics(job.id, stage, cursor_number(after) or 0, limit + 1)
    part = Slice.of(rows, limit)
    views = [MetricView.of(row) for row in part.rows]
    return MetricList(data=views, has_more=part.has_more, next=part.cursor(lambda row: (row.seq,)))
