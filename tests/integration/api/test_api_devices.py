"""Latency targets: bringing tables, having them measured, deleting them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from search.latency import HeldOut, LatencyTable
from search.presets import resolve
from service.db.models import Device, Job, JobState
from service.ids import IdKind, format_id, parse_id
from tests.unit.search.latency_tables import table_for

SPACE = resolve("micro", img_size=8, in_chans=1)
TABLE: LatencyTable = table_for(
    SPACE, 10, held_out=[HeldOut(SPACE.smallest().genotype, 90, 100), HeldOut(SPACE.largest().genotype, 130, 100)]
)
BUILD: dict[str, Any] = {"space": "micro", "held_out": 5}


def uploaded(api: TestClient, **changes: Any) -> dict[str, Any]:
    response = api.post("/devices", json={"name": "board", "table": {**TABLE.to_json(), **changes}})
    assert response.status_code == 201, response.text
    view: dict[str, Any] = response.json()
    return view


def built(api: TestClient, **changes: Any) -> dict[str, Any]:
    response = api.post("/devices", json={"name": "here", "build": {**BUILD, **changes}})
    assert response.status_code == 201, response.text
    view: dict[str, Any] = response.json()
    return view


def test_a_table_that_is_brought_along_is_ready_with_its_error(api: TestClient) -> None:
    response = api.post("/devices", json={"name": "board", "table": TABLE.to_json()})
    device = response.json()
    assert response.headers["Location"] == f"/devices/{device['id']}"
    assert (device["status"], device["digest"], device["job"]) == ("ready", TABLE.digest(), None)
    assert (device["error_share"], device["held_out"]) == (pytest.approx(0.2), 2)
    assert device["setting"]["device"] == "bench"
    assert api.get(f"/devices/{device['id']}").json() == device
    assert api.get("/devices").json()["data"] == [device]
    assert LatencyTable.from_json(api.get(f"/devices/{device['id']}/table").json()) == TABLE


def test_a_repeated_upload_makes_one_device(api: TestClient) -> None:
    answers = [
        api.post("/devices", json={"name": "a", "table": TABLE.to_json()}, headers={"Idempotency-Key": "k"}).json()
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert len(api.get("/devices").json()["data"]) == 1


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"block_ns": [[48, 2, 2.0, -5]]}, "/table/block_ns/0"),
        ({"runtime": "abacus"}, "/table/runtime"),
        ({"surprise": 1}, "/table/surprise"),
        ({"fixed_ns": [[48, 1]] * 1000}, "/table/fixed_ns"),
        ({"schema_version": 2}, "/table/schema_version"),
    ],
)
def test_a_table_that_is_none_is_refused_where_it_is_wrong(
    api: TestClient, changes: dict[str, Any], pointer: str
) -> None:
    response = api.post("/devices", json={"name": "board", "table": {**TABLE.to_json(), **changes}})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    assert response.json()["errors"][0]["pointer"] == pointer
    assert api.get("/devices").json()["data"] == []


@pytest.mark.parametrize(
    ("build", "pointer"),
    [
        ({"space": "mikro"}, "/build/space/preset"),
        ({"space": "micro", "networks": 2}, "/build/networks"),
        ({"space": "micro", "runtime": "onnxruntime", "precision": "bf16"}, "/build"),
        ({"space": "micro", "on": "me"}, "/build/on"),
        ({"space": "micro", "runs": 0}, "/build/runs"),
    ],
)
def test_a_measurement_that_cannot_work_is_refused_before_it_is_queued(
    api: TestClient, build: dict[str, Any], pointer: str
) -> None:
    response = api.post("/devices", json={"name": "here", "build": build})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer), response.text
    assert api.get("/jobs").json()["data"] == []


def test_a_device_is_brought_or_measured_not_both(api: TestClient) -> None:
    both = {"name": "x", "table": TABLE.to_json(), "build": BUILD}
    for body in (both, {"name": "x"}):
        response = api.post("/devices", json=body)
        assert (response.status_code, "exactly one" in response.text) == (422, True)


def test_a_measurement_is_a_job_that_can_be_repeated_from_what_it_shows(api: TestClient) -> None:
    device = built(api)
    assert (device["status"], device["digest"], device["error"]) == ("waiting", None, None)
    job = api.get(f"/jobs/{device['job']}").json()
    assert (job["kind"], job["status"], job["name"]) == ("latency_table", "queued", "latency table here")
    build = job["spec"]["build"]
    assert build == device["build"]
    assert (build["num_classes"], build["networks"], build["runs"]) == (10, 63, 30)
    assert build["space"]["overrides"]["embed_dim"] == [48, 64, 96]
    again = api.post("/devices", json=job["spec"])
    assert (again.status_code, again.json()["build"]) == (201, build)
    assert api.get(f"/devices/{device['id']}/table").status_code == 404


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.CANCELLED, "failed"),
        (JobState.FAILED, "failed"),
        (JobState.PAUSED, "waiting"),
    ],
)
def test_a_device_shows_how_its_job_fares(api: TestClient, session: Session, state: JobState, status: str) -> None:
    device = built(api)
    job_id = parse_id(IdKind.JOB, device["job"])
    ended = func.now() if state is not JobState.PAUSED else None
    session.execute(update(Job).where(Job.id == job_id).values(state=state, finished_at=ended))
    session.commit()
    assert api.get(f"/devices/{device['id']}").json()["status"] == status


def test_a_device_that_is_being_measured_is_not_deleted(api: TestClient) -> None:
    device = built(api)
    refused = api.delete(f"/devices/{device['id']}")
    assert (refused.status_code, refused.json()["jobs"]) == (409, [device["job"]])
    assert api.post(f"/jobs/{device['job']}/cancel").status_code == 202
    assert api.delete(f"/devices/{device['id']}").status_code == 204
    assert api.get(f"/devices/{device['id']}").status_code == 404


def test_devices_are_their_owners(api: TestClient, stranger: TestClient) -> None:
    device = uploaded(api)
    assert stranger.get("/devices").json()["data"] == []
    for path in ("", "/table"):
        assert stranger.get(f"/devices/{device['id']}{path}").status_code == 404
    assert stranger.delete(f"/devices/{device['id']}").status_code == 404
    assert api.get(f"/devices/{device['id']}").status_code == 200


def test_devices_are_listed_from_the_newest_in_pages(api: TestClient) -> None:
    ids = [uploaded(api)["id"] for _ in range(3)]
    first = api.get("/devices?limit=2").json()
    assert ([device["id"] for device in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
    rest = api.get("/devices", params={"limit": 2, "after": first["next"]}).json()
    assert ([device["id"] for device in rest["data"]], rest["has_more"]) == ([ids[0]], False)


def test_a_row_keeps_what_the_answer_shows(api: TestClient, session: Session) -> None:
    device = uploaded(api)
    row = session.scalars(select(Device).where(Device.id == UUID(hex=device["id"][4:]))).one()
    assert (format_id(IdKind.DEVICE, row.id), row.sha256) == (device["id"], TABLE.digest())


def search_within(**limit: Any) -> dict[str, Any]:
    constraints = [{"metric": "latency_ms", **limit}]
    return {"method": "masktas", "dataset": "digits", "space": "micro", "constraints": constraints}


def test_a_search_keeps_the_table_of_the_device_that_it_names(api: TestClient) -> None:
    device = uploaded(api)
    response = api.post("/search", json=search_within(device=device["id"], max=0.05))
    assert response.status_code == 202, response.text
    job = response.json()
    [limit] = job["spec"]["constraints"]
    assert (limit["table_digest"], limit["table"]) == (TABLE.digest(), TABLE.to_json())
    assert api.delete(f"/devices/{device['id']}").status_code == 204
    assert api.post("/search/validate", json=job["spec"]).status_code == 200  # what a job shows can be repeated


def test_a_limit_on_a_device_that_cannot_predict_names_those_that_can(api: TestClient) -> None:
    ready, waiting = uploaded(api)["id"], built(api)["id"]
    for device, code in (
        ("dev_" + "0" * 32, "unknown_device"),
        ("board", "unknown_device"),
        (waiting, "device_not_ready"),
    ):
        response = api.post("/search/validate", json=search_within(device=device, max=0.05))
        assert response.status_code == 422
        [item] = response.json()["errors"]
        assert (item["pointer"], item["code"]) == ("/constraints/0/device", code)
        assert item["allowed"] == [ready]
