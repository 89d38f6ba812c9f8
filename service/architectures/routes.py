"""Routes of architectures, and shortcuts to a search's winner."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from service.architectures.schemas import ArchitectureCost, ArchitectureDocument, ArchitectureView
from service.architectures.service import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    price,
    winners_file,
)
from service.architectures.service import get_architecture as describe
from service.artifacts.service import read_whole
from service.auth import ArtifactReader, JobReader
from service.errors import NotFound
from service.http import StrictRoute, matches_etag, strong_etag, url
from service.ids import IdKind, format_id, parse_id
from service.jobs.routes import JobId
from service.openapi import Responses, problems
from service.services import ServicesDep, SessionDep

router = APIRouter(tags=["architectures"], route_class=StrictRoute)

_DOCUMENT: Responses = {
    200: {
        "description": "The file `architecture.json` of the winner.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    304: {"description": "The client has the document already."},
    **problems(NotFound),
}
_REDIRECT: Responses = {
    307: {
        "description": "The weights are at `Location`.",
        "headers": {"Location": {"description": "Path of the bytes.", "schema": {"type": "string"}}},
    },
    **problems(NotFound),
}


@router.post("/architectures/cost", responses=problems(body=True))
async def price_architecture(
    document: Annotated[ArchitectureDocument, Body()],
    caller: JobReader,
    session: SessionDep,
    device: Annotated[
        str | None, Query(max_length=100, description="Id of a device, `dev_...`, whose table predicts the latency.")
    ] = None,
) -> ArchitectureCost:
    """Size, work, memory and latency of any valid architecture, whether or not a space contains it."""
    return await price(session, caller.owner, document, device)


@router.get("/architectures/{architecture_id}", responses=problems(NotFound))
async def get_architecture(
    architecture_id: Annotated[str, Path(description="Id of a candidate, `arch_...`.")],
    caller: JobReader,
    session: SessionDep,
    parts: ServicesDep,
) -> ArchitectureView:
    """The architecture JSON of a candidate with its costs, scores, accuracies and files."""
    return await describe(session, caller.owner, architecture_id, parts.store)


@router.get("/jobs/{job_id}/architecture", response_class=Response, responses=_DOCUMENT)
async def get_winning_architecture(
    request: Request,
    job_id: JobId,
    caller: ArtifactReader,
    session: SessionDep,
    parts: ServicesDep,
    if_none_match: Annotated[str | None, Header(description="`ETag` of an earlier answer.")] = None,
) -> Response:
    """The architecture JSON of the network that won, or that was taken out of a supernet, as it was exported."""
    file = await winners_file(session, caller.owner, parse_id(IdKind.JOB, job_id), DESCRIPTION_FILE)
    etag = strong_etag(file.sha256)
    if matches_etag(request, etag):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(await read_whole(parts.store, file), media_type="application/json", headers={"ETag": etag})


@router.get("/jobs/{job_id}/weights", status_code=307, response_class=RedirectResponse, responses=_REDIRECT)
async def get_winning_weights(request: Request, job_id: JobId, caller: ArtifactReader, session: SessionDep) -> Response:
    """The weights of the network that won, or that was taken out of a supernet: leads to the bytes of the artifact."""
    file = await winners_file(session, caller.owner, parse_id(IdKind.JOB, job_id), WEIGHTS_FILE)
    return RedirectResponse(url(request, f"/artifacts/{format_id(IdKind.ARTIFACT, file.id)}/content"))
