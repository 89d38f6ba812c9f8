"""Routes of artifacts: metadata and bytes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Request, Response

from service.artifacts.content import serve_content
from service.artifacts.repository import ArtifactRepository
from service.artifacts.schemas import ArtifactList, ArtifactView
from service.artifacts.service import get_artifact as find_artifact
from service.auth import ArtifactReader
from service.errors import NotFound, RangeNotSatisfiable
from service.http import StrictRoute
from service.ids import IdKind, parse_id
from service.jobs.routes import JobId
from service.jobs.service import get_job
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id
from service.services import Services, ServicesDep, SessionDep

router = APIRouter(tags=["artifacts"], route_class=StrictRoute)

ArtifactId = Annotated[str, Path(description="Id of an artifact, `art_...`.")]

_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_CONTENT: Responses = {
    200: {"description": "The whole file; its `ETag` is the SHA-256 in quotes.", "content": _BYTES},
    206: {"description": "The bytes that `Range` asked for.", "content": _BYTES},
    304: {"description": "The client has the file already."},
    **problems(NotFound, RangeNotSatisfiable),
}


@router.get("/jobs/{job_id}/artifacts", responses=problems(NotFound))
async def list_artifacts(
    job_id: JobId,
    caller: ArtifactReader,
    session: SessionDep,
    after: CursorParam = None,
    limit: LimitParam = DEFAULT_LIMIT,
) -> ArtifactList:
    """Files that the job has made. There are none before it has succeeded."""
    job = await get_job(session, caller.owner, parse_id(IdKind.JOB, job_id))
    part = Slice.of(await ArtifactRepository(session, caller.owner).page(job.id, cursor_id(after), limit + 1), limit)
    return ArtifactList(
        data=[ArtifactView.of(row) for row in part.rows], has_more=part.has_more, next=part.cursor(by_id)
    )


@router.get("/artifacts/{artifact_id}", responses=problems(NotFound))
async def get_artifact(artifact_id: ArtifactId, caller: ArtifactReader, session: SessionDep) -> ArtifactView:
    """What is known of a file without reading it."""
    return ArtifactView.of(await find_artifact(session, caller.owner, parse_id(IdKind.ARTIFACT, artifact_id)))


@router.get("/artifacts/{artifact_id}/content", response_class=Response, responses=_CONTENT)
async def get_artifact_content(
    request: Request,
    artifact_id: ArtifactId,
    caller: ArtifactReader,
    parts: ServicesDep,
    range: Annotated[str | None, Header(description="One range of bytes, such as `bytes=0-1023`.")] = None,
    if_range: Annotated[
        str | None, Header(description="Send the range only if the file still has this `ETag`.")
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`ETag` of what the client has.")] = None,
) -> Response:
    """The bytes of a file."""
    return await _serve(request, artifact_id, caller.owner, parts)


@router.head("/artifacts/{artifact_id}/content", response_class=Response, responses=_CONTENT)
async def head_artifact_content(
    request: Request, artifact_id: ArtifactId, caller: ArtifactReader, parts: ServicesDep
) -> Response:
    """The headers that a GET would have."""
    return await _serve(request, artifact_id, caller.owner, parts)


async def _serve(request: Request, artifact_id: str, owner: str, parts: Services) -> Response:
    # The session ends before the bytes flow: a slow reader must not keep a connection to the database.
    async with parts.sessions() as session:
        artifact = await find_artifact(session, owner, parse_id(IdKind.ARTIFACT, artifact_id))
    return await serve_content(request, artifact, parts.store)
