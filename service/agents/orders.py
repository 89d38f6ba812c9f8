"""Orders of device agents: what is to be measured, and what has been."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from models.architecture import Architecture
from service.agents.repository import AgentRepository, OrderRepository
from service.agents.schemas import (
    MOST_WARM_UPS,
    BeginOrder,
    Measurement,
    Measuring,
    Order,
    OrderProgress,
)
from service.db.models import Device, DeviceNetwork, JobKind
from service.errors import (
    AgentSuperseded,
    ErrorItem,
    InvalidState,
    LatencyUnmeasurable,
    NotFound,
    ValidationFailed,
)
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.events import JOB_CHANNEL
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.resolve import design_of
from service.jobs.spec import AGENT_PREFIX, WORKER, DeviceSpec, LatencyBuildSpec
from service.jobs.values import NewJob

_NAMED = 20
_LONGEST_DETAIL = 1000


def table_job(owner: str, name: str, build: LatencyBuildSpec) -> NewJob:
    """The job that gives a device its table.

    On a worker it measures. For an agent it fits the table to what that one has measured, which takes a second but
    libraries that the API does without.
    """
    return NewJob(
        owner=owner,
        kind=JobKind.LATENCY_TABLE,
        name=f"latency table {name}",
        spec=DeviceSpec(name=name, build=build).model_dump(mode="json"),
        queue=DEFAULT_QUEUE,
        seed=build.seed,
    )


async def place_order(session: AsyncSession, owner: str, device: Device) -> None:
    """Write down what an agent is to measure for a device, and wake the agent. The caller commits.

    Raises:
        ValidationFailed: there is no such agent.
    """
    build = _build(device)
    assert build.agent is not None, "a build on a worker is a job"
    known = await AgentRepository(session, owner).get(build.agent)
    if known is None:
        some = await AgentRepository(session, owner).page(None, _NAMED)
        detail = f"there is no agent {build.agent!r}; PUT /agents/{{name}} makes one"
        allowed = [WORKER, *(AGENT_PREFIX + other.row.name for other in some)]
        raise ValidationFailed.of([ErrorItem("/build/on", "unknown_agent", detail, allowed)])
    await OrderRepository(session, owner).add_networks(device, design_of(build))
    if known.row.session is not None:
        await session.execute(select(func.pg_notify(JOB_CHANNEL, str(known.row.session))))


async def next_order(session: AsyncSession, owner: str, agent: str) -> Order | None:
    """What the agent is to measure next, None when there is nothing."""
    orders = OrderRepository(session, owner)
    device = await orders.oldest_open(agent)
    if device is None:
        return None
    build = _build(device)
    return Order(
        device=format_id(IdKind.DEVICE, device.id),
        name=device.name,
        measuring=Measuring(**build.model_dump(include=set(Measuring.model_fields))),
        architectures=[row.architecture for row in await orders.networks(device)],
    )


async def begin(session: AsyncSession, owner: str, agent: str, device_id: UUID, begun: BeginOrder) -> list[int]:
    """Let the session work on an order, and tell what is measured already. The caller commits.

    Times of two machines make no table together: when the machine is another one than before, all begins anew.

    Raises:
        NotFound, InvalidState: the order is gone, or needs nothing more.
    """
    orders = OrderRepository(session, owner)
    device = await _open_order(orders, agent, device_id)
    same = begun.machine.model_dump()
    if device.machine is not None and any(device.machine[name] != value for name, value in same.items()):
        await orders.forget_measurements(device)
    device.machine = {**same, "cores": begun.cores, "load": begun.load}
    device.session = UUID(begun.session)
    await session.flush()
    rows = (await orders.networks(device)).all()
    known = [row.n for row in rows if row.latency is not None]
    if len(known) == len(rows):  # its job was deleted
        await _finish(session, owner, device)
    return known


async def add_measurements(
    session: AsyncSession, owner: str, agent: str, device_id: UUID, session_id: UUID, given: Sequence[Measurement]
) -> OrderProgress:
    """Keep what networks took; when all are there, a job that fits the table is queued. The caller commits.

    What is known stays as it is, so that an answer which got lost may be sent again.

    Raises:
        NotFound, InvalidState: the order is gone, or failed.
        AgentSuperseded: another session works on it.
        ValidationFailed: a measurement of a network that was not ordered, or one that was made otherwise.
    """
    orders = OrderRepository(session, owner)
    device = await _order(orders, agent, device_id)
    if device.error is not None:
        raise _over(device)
    rows = {row.n: row for row in await orders.networks(device)}
    if not _is_open(device):  # the last of them was sent before
        return OrderProgress(measured=len(rows), planned=len(rows), done=True)
    _require_session(device, session_id)
    if problems := _problems(_build(device), rows, given):
        raise ValidationFailed.of(problems)
    for one in given:
        if rows[one.n].latency is None:
            rows[one.n].latency = one.model_dump(exclude={"n", "genotype"})
    await session.flush()
    measured = sum(row.latency is not None for row in rows.values())
    if measured == len(rows):
        await _finish(session, owner, device)
    return OrderProgress(measured=measured, planned=len(rows), done=measured == len(rows))


async def fail(session: AsyncSession, owner: str, agent: str, device_id: UUID, detail: str) -> None:
    """Give an order up: the machine cannot measure so. The caller commits.

    Raises:
        NotFound, InvalidState: the order is gone, or needs nothing more.
    """
    device = await _open_order(OrderRepository(session, owner), agent, device_id)
    # It ends on terminals.
    text = "".join(char if char.isprintable() else " " for char in detail)[:_LONGEST_DETAIL].strip()
    device.error = LatencyUnmeasurable(f"Agent {agent} cannot measure so: {text}").to_json()
    await session.flush()


async def _finish(session: AsyncSession, owner: str, device: Device) -> None:
    request = table_job(owner, device.name, _build(device))
    device.job_id = (await session.run_sync(transitions.enqueue, request)).id
    await session.flush()


async def _order(orders: OrderRepository, agent: str, device_id: UUID) -> Device:
    device = await orders.get_locked(agent, device_id)
    if device is None:
        raise NotFound(f"Agent {agent} has no order {format_id(IdKind.DEVICE, device_id)}.")
    return device


async def _open_order(orders: OrderRepository, agent: str, device_id: UUID) -> Device:
    device = await _order(orders, agent, device_id)
    if not _is_open(device):
        raise _over(device)
    return device


def _is_open(device: Device) -> bool:
    return device.latency_table is None and device.error is None and device.job_id is None


def _over(device: Device) -> InvalidState:
    how = "was given up" if device.error is not None else "has been measured"
    return InvalidState(f"Order {format_id(IdKind.DEVICE, device.id)} {how}; ask for the next one.")


def _require_session(device: Device, session_id: UUID) -> None:
    if device.session != session_id:
        detail = f"Another session began to measure {format_id(IdKind.DEVICE, device.id)}; begin it before you send."
        raise AgentSuperseded(detail)


def _problems(build: LatencyBuildSpec, rows: dict[int, DeviceNetwork], given: Sequence[Measurement]) -> list[ErrorItem]:
    """What is wrong with measurements: other networks than were ordered, or other numbers of calls."""
    found = []
    most_warm_ups = max(1, MOST_WARM_UPS * build.warmup_runs)
    for i, one in enumerate(given):
        at, row = f"/measurements/{i}", rows.get(one.n)
        if row is None:
            found.append(ErrorItem(f"{at}/n", "unknown_network", f"the order has {len(rows)} networks", len(rows) - 1))
        elif tuple(one.genotype) != Architecture.from_json(row.architecture).genotype:
            detail = f"network {one.n} of the order is another one"
            found.append(ErrorItem(f"{at}/genotype", "wrong_network", detail))
        elif one.runs != build.runs or not build.warmup_runs <= one.warmup_runs <= most_warm_ups:
            detail = (
                f"found {one.runs} calls after {one.warmup_runs}, ordered were {build.runs} after {build.warmup_runs}"
            )
            found.append(ErrorItem(f"{at}/runs", "wrong_measurement", detail, build.runs))
    return found


def _build(device: Device) -> LatencyBuildSpec:
    return LatencyBuildSpec.model_validate(device.build)
