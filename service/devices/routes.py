"""Routes of devices: latency targets and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import JobReader, JobWriter
from service.db.models import Device
from service.devices import service as devices
from service.devices.repository import DeviceRepository
from service.devices.schemas import DeviceList, DeviceView, NewDevice
from service.errors import IdempotencyInProgress, IdempotencyKeyReuse, InvalidState, NotFound
from service.http import StrictRoute, url
from service.idempotency import OnceDep, json_response
from service.openapi import Responses, problems
from service.pagination import DEFAULT_LIMIT, CursorParam, LimitParam, Slice, by_id, cursor_id
from service.schemas import Json
from service.services import SessionDep

router = APIRouter(prefix="/devices", tags=["devices"], route_class=StrictRoute)

DeviceId = Annotated[str, Path(description="Id of a device, `dev_...`.")]

_CREATED: Responses = {
    201: {
        "description": "The device exists; it is `ready` when it came with a table, else once it has been measured.",
        "headers": {"Location": {"description": "Path of the device.", "schema": {"type": "string"}}},
    },
    **problems(IdempotencyInProgress, IdempotencyKeyReuse, body=True),
}


@router.get("", responses=problems())
async def list_devices(
    caller: JobReader, session: SessionDep, after: CursorParam = None, limit: LimitParam = DEFAULT_LIMIT
) -> DeviceList:
    """Devices from the newest to the oldest."""
    part = Slice.of(await DeviceRepository(session, caller.owner).page(cursor_id(after), limit + 1), limit)
    shown = await _show(session, caller.owner, part.rows)
    return DeviceList(data=shown, has_more=part.has_more, next=part.cursor(by_id))


@router.post("", status_code=201, response_model=DeviceView, responses=_CREATED)
async def create_device(
    request: Request, new: NewDevice, caller: JobWriter, session: SessionDep, once: OnceDep
) -> Response:
    """Bring a latency table that was measured elsewhere, or have one measured by a worker or a device agent."""

    async def act() -> JSONResponse:
        row = await devices.add_device(session, caller.owner, new)
        [view] = await _show(session, caller.owner, [row])
        return json_response(view, 201, {"Location": url(request, f"/devices/{view.id}")})

    return await once.perform(session, act)


@router.get("/{device_id}", responses=problems(NotFound))
async def get_device(device_id: DeviceId, caller: JobReader, session: SessionDep) -> DeviceView:
    """One device."""
    [view] = await _show(session, caller.owner, [await devices.get_device(session, caller.owner, device_id)])
    return view


@router.get("/{device_id}/table", responses=problems(NotFound))
async def get_device_table(device_id: DeviceId, caller: JobReader, session: SessionDep) -> Json:
    """The latency table, in the form in which `POST /devices` takes one."""
    row = await devices.get_device(session, caller.owner, device_id)
    if row.latency_table is None:
        raise NotFound(f"Device {device_id} has no table yet; GET /devices/{device_id} tells how far it is.")
    return row.latency_table


@router.delete("/{device_id}", status_code=204, responses=problems(NotFound, InvalidState))
async def delete_device(device_id: DeviceId, caller: JobWriter, session: SessionDep) -> Response:
    """Delete a device. Jobs keep the table that they were given."""
    await devices.delete_device(session, caller.owner, device_id)
    return Response(status_code=204)


async def _show(session: AsyncSession, owner: str, rows: Sequence[Device]) -> list[DeviceView]:
    devices_of = DeviceRepository(session, owner)
    jobs, orders = await devices_of.jobs(rows), await devices_of.orders(rows)
    return [
        DeviceView.of(row, jobs.get(row.job_id) if row.job_id is not None else None, orders.get(row.id)) for row in rows
    ]
