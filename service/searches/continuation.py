"""A new job that goes on where a search that has succeeded has ended, as if more had been asked for at first.

A job that has succeeded stays as it is. What a search does next depends on its state alone, which is a file of the
result; so the new job takes over the supernet and that file, and does what comes after the search anew. Its spec is the
old one with the new totals: sent as the body of a search, it gives the same candidates from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import Artifact, Job, JobKind, Supernet
from service.errors import ErrorItem, InvalidState, ValidationFailed
from service.ids import IdKind, format_id
from service.jobs.extension import ExtendRequest, extended_spec
from service.jobs.spec import SearchSpec
from service.searches.service import start_search

Json = dict[str, Any]

SEARCH_ARTIFACT = "search"
"""Kind of the artifact that holds all of a search."""


async def continue_search(session: AsyncSession, owner: str, job: Job, wanted: ExtendRequest) -> Job:
    """Insert the job that goes on with a search that has succeeded. The caller commits.

    Raises:
        ValidationFailed: a total is lower than the job's, or would have no effect; or the spec is none any more, since
            a dataset was deleted.
        InvalidState: the search cannot be gone on with exactly.
    """
    for why in _obstacles(job):
        raise _not_possible(job, why)
    spec = extended_spec(job.spec, wanted)
    if not wanted.asks_for_more_search and job.stop_reason != "budget":
        detail = f"the search ended by {job.stop_reason} and not because its time was up; say how much more is wanted"
        raise ValidationFailed.of([ErrorItem("", "no_effect", detail, ["generations", "max_evaluations"])])
    kept = select(Artifact.id).where(Artifact.job_id == job.id, Artifact.kind == SEARCH_ARTIFACT)
    if await session.scalar(kept) is None:
        raise _not_possible(job, "it was made by a version that did not keep searches")
    if spec.get("warm_start") is None:
        trained = await session.scalar(select(Supernet.id).where(Supernet.job_id == job.id))
        if trained is None:
            raise _not_possible(job, "its supernet is gone")
        spec["warm_start"] = {"supernet": format_id(IdKind.SUPERNET, trained)}
    return await start_search(session, owner, SearchSpec.model_validate(spec), goes_on_with=job.id)


def _obstacles(job: Job) -> Iterator[str]:
    if job.kind != JobKind.SEARCH or job.spec.get("method") != "masktas":
        yield "only searches of architectures can be"
        return
    if job.spec.get("widths") is not None:
        yield "its supernet was trained at widths that a search which takes it over cannot have"
    if job.stop_reason == "space_exhausted":
        yield "all networks within its limits were scored"
    search, evaluations = job.spec["search"], (job.result or {})["evaluations"]
    cut = search["max_evaluations"] % search["population"]
    if cut and evaluations >= search["max_evaluations"] - cut:
        # With more evaluations from the start, this generation would have been bred larger.
        yield f"its last generation was cut to {search['max_evaluations']} evaluations already"


def _not_possible(job: Job, why: str) -> InvalidState:
    detail = (
        f"Job {format_id(IdKind.JOB, job.id)} has succeeded and cannot be extended: {why}. "
        "Start another search with warm_start and search.population_from."
    )
    return InvalidState(detail, extra={"state": job.state, "allowed": []})
