"""From the body of a search to a job, or to a preview of one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import assert_never
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from models.architecture import Genotype
from search.latency import LatencyTable
from search.width_limits import WidthCosts
from service.datasets.info import DatasetInfo
from service.datasets.service import find_dataset
from service.db.models import Job, JobKind
from service.devices.service import find_table
from service.forecast.calibration import Calibration
from service.forecast.estimate import estimate
from service.forecast.jobs import forecast_search, forecast_widths
from service.jobs import transitions
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.resolve import Resolved, ResolvedSlimmable, latency_pointer, resolve_search, resolve_slimmable
from service.jobs.schemas import Notice
from service.jobs.spec import WORKER, AnySearchSpec, SearchSpec, SlimmableSpec
from service.jobs.values import NewJob
from service.searches.population import find_population
from service.searches.schemas import Feasibility, ForecastView, ReachableCost, SearchPreview, WidthPreview
from service.settings import Settings
from service.supernets.info import SupernetInfo
from service.supernets.service import find_supernet
from service.teachers.info import TeacherInfo
from service.teachers.service import find_teacher
from service.workers.repository import WorkerRepository


@dataclass(frozen=True, slots=True)
class _Named:
    """What a search names by ids."""

    dataset: DatasetInfo
    supernet: SupernetInfo | None
    teacher: TeacherInfo | None
    init: TeacherInfo | None
    tables: dict[str, LatencyTable]
    population: Sequence[Genotype] = ()


async def start_search(
    session: AsyncSession, owner: str, asked: AnySearchSpec, *, goes_on_with: UUID | None = None
) -> Job:
    """Insert the job of a search. The caller commits.

    Args:
        session: of the request.
        owner: of the job.
        asked: the body.
        goes_on_with: the job whose search this one goes on with; see ``service.searches.continuation``.

    Raises:
        ServiceError: whatever is wrong with the spec; see :mod:`service.jobs.resolve`.
    """
    named = await _named(session, owner, asked)
    # Limits are decided exactly, which may take seconds of processor time.
    resolved = await asyncio.to_thread(_resolve, asked, named)
    job = await session.run_sync(transitions.enqueue, _new_job(owner, resolved.spec, named.dataset, goes_on_with))
    job.warnings = [warning.to_json() for warning in resolved.warnings]
    await session.flush()
    return job


async def preview_search(session: AsyncSession, owner: str, asked: AnySearchSpec, settings: Settings) -> SearchPreview:
    """What :func:`start_search` would start; refuses what that would refuse."""
    named = await _named(session, owner, asked)
    workers = await WorkerRepository(session, settings.lease_s).calibrations(DEFAULT_QUEUE)
    return await asyncio.to_thread(_preview, asked, named, workers, settings.checkpoint_s)


async def _named(session: AsyncSession, owner: str, asked: AnySearchSpec) -> _Named:
    dataset = await find_dataset(session, owner, asked.dataset.id)
    supernet = None
    if asked.warm_start is not None:
        supernet = await find_supernet(session, owner, asked.warm_start.supernet)
    teacher, init = None, None
    # A supernet of a space that is taken over has its teacher's weights with it, so that one may be gone by now.
    comes_along = isinstance(asked, SearchSpec) and supernet is not None
    if asked.teacher is not None and asked.teacher.id is not None and not comes_along:
        teacher = await find_teacher(session, owner, asked.teacher.id, "/teacher/id")
    if isinstance(asked, SlimmableSpec) and asked.init is not None and asked.init.teacher is not None:
        init = await find_teacher(session, owner, asked.init.teacher, "/init/teacher")
    population: Sequence[Genotype] = ()
    seeds = asked.search.population_from if isinstance(asked, SearchSpec) else None
    if seeds is not None and seeds.job is not None and seeds.architectures is None:
        population = await find_population(session, owner, seeds.job)
    return _Named(dataset, supernet, teacher, init, await _tables(session, owner, asked), population)


async def _tables(session: AsyncSession, owner: str, asked: AnySearchSpec) -> dict[str, LatencyTable]:
    """The table of the device whose latency counts; none of a spec that has it already, as a filled one does."""
    found = latency_pointer(asked)
    if found is None:
        return {}
    pointer, part = found
    if part.table is not None or part.device is None or part.device == WORKER:
        return {}
    return {part.device: await find_table(session, owner, part.device, f"{pointer}/device")}


def _resolve(asked: AnySearchSpec, named: _Named) -> Resolved | ResolvedSlimmable:
    match asked:
        case SearchSpec():
            return resolve_search(asked, named.dataset, named.supernet, named.teacher, named.tables, named.population)
        case SlimmableSpec():
            return resolve_slimmable(asked, named.dataset, named.supernet, named.teacher, named.init)
        case _:
            assert_never(asked)


def _new_job(owner: str, spec: AnySearchSpec, dataset: DatasetInfo, parent_id: UUID | None) -> NewJob:
    assert spec.name is not None, "resolving fills the name"
    return NewJob(
        owner=owner,
        kind=JobKind.SEARCH,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        meta=spec.metadata,
        dataset_id=dataset.id,
        parent_id=parent_id,
        queue=DEFAULT_QUEUE,
        priority=spec.priority,
        seed=spec.seed,
        max_failures=spec.retry.max_failures,
    )


def _preview(asked: AnySearchSpec, named: _Named, workers: Sequence[Calibration], checkpoint_s: float) -> SearchPreview:
    resolved = _resolve(asked, named)
    widths: list[WidthPreview] = []
    match resolved:
        case Resolved(space=space):
            members = resolved.feasible().count
            shown, feasible = space.to_json(), Feasibility(architectures=members, space_size=space.size())
            work, footprint = forecast_search(resolved, named.dataset, named.supernet, named.teacher)
        case ResolvedSlimmable(net=net, within=within, served=served):
            shown, feasible = net.to_json(), Feasibility(architectures=len(within), space_size=len(served))
            widths = _widths(resolved)
            work, footprint = forecast_widths(resolved, named.dataset)
        case _:
            assert_never(resolved)
    devices = resolved.spec.resources.devices
    forecast = estimate(work, footprint, workers, devices=devices, checkpoint_s=checkpoint_s)
    return SearchPreview(
        spec=resolved.spec.model_dump(mode="json"),
        space=shown,
        reachable=[ReachableCost(metric=r.metric, min=r.min, max=r.max) for r in resolved.reachable],
        feasible=feasible,
        widths=widths,
        estimate=None if forecast is None else ForecastView.model_validate(asdict(forecast)),
        warnings=[Notice(**warning.to_json()) for warning in resolved.warnings],
    )


def _widths(resolved: ResolvedSlimmable) -> list[WidthPreview]:
    net = resolved.net
    costs = WidthCosts(net, resolved.served)
    return [
        WidthPreview(
            ratio=net.ratio(head_dim),
            width=net.embed_dim(head_dim),
            head_dim=head_dim,
            trained=net.is_trained(head_dim),
            feasible=head_dim in resolved.within,
            **costs.of(head_dim),
        )
        for head_dim in resolved.served
    ]
