"""Routes of device agents: making them, and what they say and ask themselves."""

from __future__ import annotations

import time
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Path, Request, Response

from service.agents import orders
from service.agents import service as agents
from service.agents.repository import AgentRepository, Known
from service.agents.schemas import (
    AgentList,
    AgentView,
    BeginOrder,
    BegunOrder,
    InSession,
    NewAgent,
    NewMeasurements,
    NewSession,
    NextOrder,
    OrderFailure,
    OrderProgress,
    SessionView,
)
from service.auth import Administrator, AgentCaller, JobReader
from service.errors import AgentSuperseded, AgentTaken, InvalidState, NotFound
from service.events.listener import POLL_S
from service.http import StrictRoute, preferred_wait_s
from service.idempotency import json_response
from service.ids import IdKind, parse_id
from service.jobs.spec import AGENT_NAME, MAX_AGENT_NAME
from service.openapi import problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Name, Slice, decode_cursor
from service.services import ServicesDep, SessionDep

router = APIRouter(prefix="/agents", tags=["agents"], route_class=StrictRoute)

LONGEST_WAIT_S = 30
"""Longer waits are cut to this: proxies close connections that stay silent."""

AgentName = Annotated[
    str,
    Path(max_length=MAX_AGENT_NAME, pattern=f"^{AGENT_NAME}$", description="Name of a device agent."),
]
DeviceId = Annotated[str, Path(description="Id of the device that is measured, `dev_...`.")]

_SPOKEN = problems(NotFound, AgentSuperseded, body=True)
_MEASURED = problems(NotFound, AgentSuperseded, InvalidState, body=True)


@router.get("", responses=problems())
async def list_agents(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> AgentList:
    """Device agents by name."""
    behind = None if after is None else decode_cursor(after, tuple[Name])[0]
    part = Slice.of(await AgentRepository(session, caller.owner).page(behind, limit + 1), limit)
    views = [AgentView.of(known.row, known.alive) for known in part.rows]
    return AgentList(data=views, has_more=part.has_more, next=part.cursor(_by_name))


@router.get("/{name}", responses=problems(NotFound))
async def get_agent(name: AgentName, caller: JobReader, session: SessionDep) -> AgentView:
    """One device agent."""
    known = await agents.get_agent(session, caller.owner, name)
    return AgentView.of(known.row, known.alive)


@router.put(
    "/{name}",
    response_model=AgentView,
    responses={
        201: {"description": "The agent is new.", "model": AgentView},
        **problems(NotFound, InvalidState, body=True),
    },
)
async def put_agent(name: AgentName, new: NewAgent, caller: Administrator, session: SessionDep) -> Response:
    """Make a device agent, or change its key. The key can measure for this agent and do nothing else.

    Repeating it with the same key changes nothing.
    """
    is_new = await agents.put_agent(session, caller.owner, name, new.key)
    known = await agents.get_agent(session, caller.owner, name)
    view = AgentView.of(known.row, known.alive)
    await session.commit()
    return json_response(view, 201 if is_new else 200)


@router.delete("/{name}", status_code=204, responses=problems(NotFound, InvalidState))
async def delete_agent(name: AgentName, caller: Administrator, session: SessionDep) -> Response:
    """Forget a device agent and make its key invalid. Tables that it measured stay."""
    await agents.remove_agent(session, caller.owner, name)
    await session.commit()
    return Response(status_code=204)


@router.post("/{name}/connect", responses=problems(NotFound, AgentTaken, body=True))
async def connect_agent(
    name: AgentName, new: NewSession, caller: AgentCaller, session: SessionDep, parts: ServicesDep
) -> SessionView:
    """Speak for an agent from now on. One process at a time may."""
    lease_s = parts.settings.lease_s
    await agents.connect(session, caller, name, new, lease_s)
    await session.commit()
    return SessionView(lease_s=lease_s)


@router.post("/{name}/heartbeat", status_code=204, responses=_SPOKEN)
async def keep_agent(
    name: AgentName, said: InSession, caller: AgentCaller, session: SessionDep, parts: ServicesDep
) -> Response:
    """Renew the lease of a session."""
    await agents.hold(session, caller, name, UUID(hex=said.session), parts.settings.lease_s)
    await session.commit()
    return Response(status_code=204)


@router.post("/{name}/disconnect", status_code=204, responses=problems(NotFound, body=True))
async def disconnect_agent(name: AgentName, said: InSession, caller: AgentCaller, session: SessionDep) -> Response:
    """End a session, so that the next process need not wait."""
    await agents.disconnect(session, caller, name, UUID(hex=said.session))
    await session.commit()
    return Response(status_code=204)


@router.post("/{name}/next", responses=_SPOKEN)
async def next_order(
    request: Request,
    name: AgentName,
    said: InSession,
    caller: AgentCaller,
    parts: ServicesDep,
    prefer: Annotated[
        str | None,
        Header(
            description=f"`wait=N`: when there is no order, wait up to N (at most {LONGEST_WAIT_S}) seconds for one."
        ),
    ] = None,
) -> NextOrder:
    """What is to be measured next, and a renewal of the lease."""
    session_id, lease_s = UUID(hex=said.session), parts.settings.lease_s
    # The lease is renewed at the beginning only, so it must outlive the wait.
    longest_s = min(LONGEST_WAIT_S, int(lease_s / 2))
    deadline = time.monotonic() + (preferred_wait_s(request, longest_s) if prefer is not None else 0)
    async with parts.sessions() as session:
        await agents.hold(session, caller, name, session_id, lease_s)
        await session.commit()
    with parts.listener.watch(session_id) as watch:
        while True:
            async with parts.sessions() as session:
                order = await orders.next_order(session, caller.owner, name)
            left_s = deadline - time.monotonic()
            if order is not None or left_s <= 0 or parts.listener.is_closing or await request.is_disconnected():
                return NextOrder(order=order)
            await watch.wait(min(left_s, POLL_S))


@router.post("/{name}/orders/{device_id}/begin", responses=_MEASURED)
async def begin_order(
    name: AgentName,
    device_id: DeviceId,
    begun: BeginOrder,
    caller: AgentCaller,
    session: SessionDep,
    parts: ServicesDep,
) -> BegunOrder:
    """Begin to measure, or go on: the answer tells what is known. On another machine than before all begins anew."""
    await agents.hold(session, caller, name, UUID(hex=begun.session), parts.settings.lease_s)
    known = await orders.begin(session, caller.owner, name, parse_id(IdKind.DEVICE, device_id), begun)
    await session.commit()
    return BegunOrder(known=known)


@router.post("/{name}/orders/{device_id}/measurements", responses=_MEASURED)
async def add_measurements(
    name: AgentName,
    device_id: DeviceId,
    new: NewMeasurements,
    caller: AgentCaller,
    session: SessionDep,
    parts: ServicesDep,
) -> OrderProgress:
    """Send what networks took. With the last of them the table is fitted, by a job."""
    session_id = UUID(hex=new.session)
    await agents.hold(session, caller, name, session_id, parts.settings.lease_s)
    progress = await orders.add_measurements(
        session, caller.owner, name, parse_id(IdKind.DEVICE, device_id), session_id, new.measurements
    )
    await session.commit()
    return progress


@router.post("/{name}/orders/{device_id}/failure", status_code=204, responses=_MEASURED)
async def give_order_up(
    name: AgentName,
    device_id: DeviceId,
    failure: OrderFailure,
    caller: AgentCaller,
    session: SessionDep,
    parts: ServicesDep,
) -> Response:
    """Tell that this machine cannot measure what was ordered."""
    await agents.hold(session, caller, name, UUID(hex=failure.session), parts.settings.lease_s)
    await orders.fail(session, caller.owner, name, parse_id(IdKind.DEVICE, device_id), failure.detail)
    await session.commit()
    return Response(status_code=204)


def _by_name(known: Known) -> tuple[str]:
    return (known.row.name,)
