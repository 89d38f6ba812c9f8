"""Latency tables on their way out of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, sessionmaker

from search.presets import resolve
from service.db.models import Candidate, Device, DeviceNetwork, Job, JobKind
from service.ids import IdKind, format_id
from service.jobs.values import Claim, Finished
from tests.integration.jobs.rows import in_transaction
from tests.unit.search.latency_tables import table_for
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import Prepared, materialise
from workers.promote import promote_result
from workers.protocol import Accuracy, Result

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


def test_what_exported_networks_take_joins_their_costs_and_decides_feasibility(
    sessions: sessionmaker[Session], claim: Callable[..., Claim]
) -> None:
    mine = claim()

    def found(session: Session) -> None:
        arch = resolve("micro", img_size=8, in_chans=1).smallest(10)
        for n in range(2):
            row = {"generation": 0, "genotype": [float(n)], "parents": [], "architecture": arch.to_json()}
            session.add(Candidate(job_id=mine.job_id, n=n, costs={"gmacs": 1.0}, feasible=True, **row))

    in_transaction(sessions, found)
    slow = {"costs": {"latency_measured_ms": 9.0}, "feasible": False}
    accuracies = [
        Accuracy(candidate_n=0, rank=0, accuracy={"val": 0.5}),
        Accuracy(candidate_n=1, rank=1, accuracy={"val": 0.6}, **slow),
    ]
    result = Result(result={}, artifacts=[], accuracies=accuracies)
    in_transaction(sessions, lambda s: promote_result(s, mine, result))
    query = select(Candidate.costs, Candidate.feasible).order_by(Candidate.n)
    rows = in_transaction(sessions, lambda s: s.execute(query.where(Candidate.job_id == mine.job_id)).all())
    assert [tuple(row) for row in rows] == [
        ({"gmacs": 1.0}, True),
        ({"gmacs": 1.0, "latency_measured_ms": 9.0}, False),
    ]


def test_the_job_that_fits_a_table_gets_what_the_agent_measured(
    sessions: sessionmaker[Session], claim: Callable[..., Claim], context: WorkerContext, tmp_path: Path
) -> None:
    mine = claim(kind=JobKind.LATENCY_TABLE)
    machine = {"device": "a board", "threads": 1, "version": "2", "cores": 1, "load": 0.0}

    def measured(session: Session) -> None:
        device = add_device(session, mine)
        device.agent, device.machine = "board", machine
        for n in (1, 0):
            row = DeviceNetwork(device_id=device.id, n=n, architecture={"n": n}, held_out=n == 1, latency={"ns": n + 1})
            session.add(row)

    in_transaction(sessions, measured)
    with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
        prepared = materialise(context, mine, keeper, tmp_path)
    assert isinstance(prepared, Prepared)
    assert prepared.start.measured == {
        "machine": machine,
        "networks": [
            {"architecture": {"n": 0}, "held_out": False, "latency": {"ns": 1}},
            {"architecture": {"n": 1}, "held_out": True, "latency": {"ns": 2}},
        ],
    }
