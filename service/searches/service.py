"""From the body of a search to a job, or to a preview of one."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncSession

from search.sampling import FeasibleSet
from service.datasets.info import DatasetInfo
from service.datasets.service import find_dataset
from service.db.models import Job, JobKind
from service.jobs import transitions
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.resolve import Resolved, constraints_of, resolve_search
from service.jobs.schemas import Notice
from service.jobs.spec import SearchSpec
from service.jobs.values import NewJob
from service.searches.schemas import Feasibility, ReachableCost, SearchPreview
from service.supernets.info import SupernetInfo
from service.supernets.service import find_supernet
from service.teachers.info import TeacherInfo
from service.teachers.service import find_teacher


async def start_search(session: AsyncSession, owner: str, asked: SearchSpec) -> Job:
    """Insert the job of a search. The caller commits.

    Raises:
        ServiceError: whatever is wrong with the spec; see :func:`service.jobs.resolve.resolve_search`.
    """
    dataset = await find_dataset(session, owner, asked.dataset.id)
    # Limits are decided exactly, which may take seconds of processor time.
    resolved = await asyncio.to_thread(resolve_search, asked, dataset, *await _named(session, owner, asked))
    request = _new_job(owner, resolved, dataset)
    job = await session.run_sync(transitions.enqueue, request)
    job.warnings = [warning.to_json() for warning in resolved.warnings]
    await session.flush()
    return job


async def preview_search(session: AsyncSession, owner: str, asked: SearchSpec) -> SearchPreview:
    """What :func:`start_search` would start; refuses what that would refuse."""
    dataset = await find_dataset(session, owner, asked.dataset.id)
    return await asyncio.to_thread(_preview, asked, dataset, *await _named(session, owner, asked))


async def _named(
    session: AsyncSession, owner: str, asked: SearchSpec
) -> tuple[SupernetInfo | None, TeacherInfo | None]:
    """Supernet and teacher that a search names by their ids.

    A supernet that is taken over has its teacher's weights with it, so that one may be gone by now.
    """
    if asked.warm_start is not None:
        return await find_supernet(session, owner, asked.warm_start.supernet), None
    return None, await find_teacher(session, owner, asked.teacher.id) if asked.teacher.id else None


def _new_job(owner: str, resolved: Resolved, dataset: DatasetInfo) -> NewJob:
    spec = resolved.spec
    assert spec.name is not None, "resolve_search fills the name"
    return NewJob(
        owner=owner,
        kind=JobKind.SEARCH,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        meta=spec.metadata,
        dataset_id=dataset.id,
        queue=DEFAULT_QUEUE,
        priority=spec.priority,
        seed=spec.seed,
        max_failures=spec.retry.max_failures,
    )


def _preview(
    asked: SearchSpec, dataset: DatasetInfo, warm: SupernetInfo | None, registered: TeacherInfo | None
) -> SearchPreview:
    resolved = resolve_search(asked, dataset, warm, registered)
    windows = [constraint.window for constraint in constraints_of(resolved.spec.constraints)]
    members = FeasibleSet(resolved.space, windows, resolved.num_classes).count
    return SearchPreview(
        spec=resolved.spec.model_dump(mode="json"),
        space=resolved.space.to_json(),
        reachable=[ReachableCost(metric=r.metric, min=r.min, max=r.max) for r in resolved.reachable],
        feasible=Feasibility(architectures=members, space_size=resolved.space.size()),
        warnings=[Notice(**warning.to_json()) for warning in resolved.warnings],
    )
