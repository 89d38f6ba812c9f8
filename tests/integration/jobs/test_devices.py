"""Latency tables on their way out of a measurement."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete
from sqlalchemy.orm import Session, sessionmaker

from search.presets import resolve
from service.db.models import Device, Job, JobKind
from service.ids import IdKind, format_id
from service.jobs.values import Claim, Finished
from tests.integration.jobs.rows import in_transaction
from tests.unit.search.latency_tables import table_for
from workers.promote import promote_result
from workers.protocol import Result

TABLE = table_for(resolve("micro", img_size=8, in_chans=1), 10)
RESULT = Result(result={"digest": TABLE.digest()}, artifacts=[], latency_table=TABLE.to_json())


def add_device(session: Session, claim: Claim) -> Device:
    row = Device(owner=claim.owner, name="here", job_id=claim.job_id, build={"space": "micro"})
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def test_a_measurement_gives_its_device_the_table_and_names_it_in_its_result(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim(kind=JobKind.LATENCY_TABLE)
    device = in_transaction(sessions, lambda s: add_device(s, mine))
    for _ in range(2):  # the second time after a lost answer
        finished = in_transaction(sessions, lambda s: promote_result(s, mine, RESULT))
        assert isinstance(finished, Finished)
    row = in_transaction(sessions, lambda s: s.get_one(Device, device.id))
    assert (row.latency_table, row.sha256) == (TABLE.to_json(), TABLE.digest())
    job = in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id))
    assert job.result == {"digest": TABLE.digest(), "device": format_id(IdKind.DEVICE, device.id)}


def test_a_measurement_whose_device_was_deleted_still_ends(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim(kind=JobKind.LATENCY_TABLE)
    device = in_transaction(sessions, lambda s: add_device(s, mine))
    in_transaction(sessions, lambda s: s.execute(delete(Device).where(Device.id == device.id)))
    assert isinstance(in_transaction(sessions, lambda s: promote_result(s, mine, RESULT)), Finished)
    job = in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id))
    assert (job.result or {})["device"] is None
