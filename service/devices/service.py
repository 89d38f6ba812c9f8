"""What can be done with devices: find the one that a limit names, bring a table, have one measured, delete."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from search.latency import LatencyTable
from service.agents.orders import place_order, table_job
from service.db.models import TERMINAL_STATES, Device
from service.devices.repository import DeviceRepository
from service.errors import ErrorItem, InvalidState, NotFound, ValidationFailed, shortened
from service.ids import BadId, IdKind, format_id, parse_id
from service.jobs import transitions
from service.jobs.resolve import read_table, resolve_build
from service.jobs.spec import DeviceSpec

# As many ids as help; a user with more devices looks them up.
_NAMED = 20


async def find_table(session: AsyncSession, owner: str, reference: str, pointer: str) -> LatencyTable:
    """The table of the device that a limit names at ``pointer``.

    Raises:
        ValidationFailed: no such device, or it has no table yet.
    """
    devices = DeviceRepository(session, owner)
    try:
        row = await devices.get(parse_id(IdKind.DEVICE, reference))
    except BadId:
        row = None
    if row is not None and row.latency_table is not None:
        return LatencyTable.from_json(row.latency_table)
    allowed = [format_id(IdKind.DEVICE, known) for known in await devices.newest_ready(_NAMED)]
    if row is None:
        code = "unknown_device"
        detail = f"there is no device {shortened(reference)!r}; name one of GET /devices by its id"
    else:
        code = "device_not_ready"
        detail = f"device {row.name!r} has no table yet; GET /devices/{reference} tells how far it is"
    raise ValidationFailed(f"{pointer}: {detail}.", errors=[ErrorItem(pointer, code, detail, allowed)])


async def get_device(session: AsyncSession, owner: str, reference: str) -> Device:
    """The row of a device that a path names.

    Raises:
        BadId, NotFound: there is none.
    """
    row = await DeviceRepository(session, owner).get(found := parse_id(IdKind.DEVICE, reference))
    if row is None:
        raise NotFound(f"There is no device {format_id(IdKind.DEVICE, found)}.")
    return row


async def add_device(session: AsyncSession, owner: str, new: DeviceSpec) -> Device:
    """Add a device: with its table, or with the order to measure one. The caller commits.

    Raises:
        ValidationFailed: a table that cannot be read, a space that cannot be measured, or an agent that is not there.
    """
    row = Device(owner=owner, name=new.name)
    if new.table is not None:
        table = read_table(new.table, "/table")
        row.latency_table, row.sha256 = table.to_json(), table.digest()
    else:
        assert new.build is not None, "the spec has one of the two"
        build = resolve_build(new.build)
        row.build, row.agent = build.model_dump(mode="json"), build.agent
        if build.agent is None:
            row.job_id = (await session.run_sync(transitions.enqueue, table_job(owner, new.name, build))).id
    row = await DeviceRepository(session, owner).add(row)
    if row.agent is not None:
        await place_order(session, owner, row)
    return row


async def delete_device(session: AsyncSession, owner: str, reference: str) -> None:
    """Delete a device and commit. Jobs keep the tables that they were given.

    Raises:
        BadId, NotFound: there is none.
        InvalidState: a job still measures it.
    """
    devices = DeviceRepository(session, owner)
    device_id: UUID = parse_id(IdKind.DEVICE, reference)
    row = await devices.get_locked(device_id)
    if row is None:
        raise NotFound(f"There is no device {format_id(IdKind.DEVICE, device_id)}.")
    job = (await devices.jobs([row])).get(row.job_id) if row.job_id is not None else None
    if job is not None and job.state not in TERMINAL_STATES:
        measuring = format_id(IdKind.JOB, job.id)
        raise InvalidState(f"Job {measuring} still measures this device; cancel it first.", extra={"jobs": [measuring]})
    await devices.delete(device_id)
    await session.commit()
