"""The same job once more: a new one with the same spec and seed, which gives the same result on the same versions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Job, JobKind
from service.errors import InvalidState
from service.ids import IdKind, format_id
from service.jobs.spec import AnySearchSpec, ExtractRequest, TransferRequest
from service.searches.service import start_search
from service.supernets.service import start_extraction, start_transfer

Json = dict[str, Any]

_SEARCH: TypeAdapter[AnySearchSpec] = TypeAdapter(AnySearchSpec)

_REPLAYABLE = (JobKind.SEARCH, JobKind.EXTRACT, JobKind.TRANSFER)


async def replay(session: AsyncSession, owner: str, job: Job) -> Job:
    """Insert a job that does from the beginning what this one does. Whatever state it is in, it stays so.

    A search that went on with another one starts from nothing, as its spec says, and gives the same candidates. What a
    clock measures, such as a latency, may come out otherwise. The caller commits.

    Raises:
        InvalidState: jobs of this kind cannot be replayed, or this one's spec is of a version that is no longer known.
        NotFound, ValidationFailed: what the spec names is gone.
    """
    if job.kind not in _REPLAYABLE:
        allowed = [kind.value for kind in _REPLAYABLE]
        raise _refusal(job, f"it is an import or a measurement ({job.kind}); send its request again", allowed)
    try:
        again = _start(session, owner, job)
    except ValidationError:
        raise _refusal(job, "its spec is of another version; send a new one", []) from None
    return await again


def _start(session: AsyncSession, owner: str, job: Job) -> Awaitable[Job]:
    spec = dict(job.spec)
    match JobKind(job.kind):
        case JobKind.EXTRACT:
            asked = {name: value for name, value in spec.items() if name in ExtractRequest.model_fields}
            return start_extraction(session, owner, spec["supernet"], ExtractRequest.model_validate(asked))
        case JobKind.TRANSFER:
            supernet = spec.pop("supernet")
            return start_transfer(session, owner, supernet, TransferRequest.model_validate(spec))
        case _:
            return start_search(session, owner, _SEARCH.validate_python(spec))


def _refusal(job: Job, why: str, allowed: list[str]) -> InvalidState:
    detail = f"Job {format_id(IdKind.JOB, job.id)} cannot be replayed: {why}."
    return InvalidState(detail, extra={"state": job.state, "allowed": allowed})
