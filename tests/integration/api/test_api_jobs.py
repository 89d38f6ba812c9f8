"""Jobs: lists, states, waiting, acting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.db.models import Checkpoint, Desired, Job, JobKind, JobState, Worker
from service.errors import LossDiverged
from service.events.listener import POLL_S
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.events import EventType, append_event
from service.services import Services
from tests.integration.api.rows import TINY, add_dataset, add_job


def public(job_id: UUID) -> str:
    return format_id(IdKind.JOB, job_id)


@pytest.mark.parametrize(
    ("state", "desired", "shown", "done"),
    [
        (JobState.QUEUED, Desired.RUN, "queued", False),
        (JobState.RUNNING, Desired.RUN, "running", False),
        (JobState.RUNNING, Desired.PAUSE, "pausing", False),
        (JobState.RUNNING, Desired.CANCEL, "cancelling", False),
        (JobState.PAUSED, Desired.PAUSE, "paused", False),
        (JobState.CANCELLED, Desired.CANCEL, "cancelled", True),
        (JobState.SUCCEEDED, Desired.RUN, "succeeded", True),
        (JobState.FAILED, Desired.RUN, "failed", True),
    ],
)
def test_state_and_desired_become_one_status_that_also_filters(
    api: TestClient, session: Session, owner: str, state: JobState, desired: Desired, shown: str, done: bool
) -> None:
    job_id = add_job(session, owner, state, desired)
    for other_state, other_desired in [(JobState.RUNNING, Desired.RUN), (JobState.PAUSED, Desired.PAUSE)]:
        add_job(session, owner, other_state, other_desired)
    job = api.get(f"/jobs/{public(job_id)}").json()
    assert (job["status"], job["done"]) == (shown, done)
    listed = api.get("/jobs", params={"status": shown}).json()["data"]
    assert {entry["status"] for entry in listed} == {shown}
    assert job["id"] in {entry["id"] for entry in listed}
    assert (job["queue"] is not None) == (shown == "queued")


def test_a_failed_job_shows_its_error_and_what_it_used(api: TestClient, session: Session, owner: str) -> None:
    error = LossDiverged("The loss is not finite at step 12; lower supernet.lr.").to_json()
    job_id = add_job(
        session,
        owner,
        JobState.FAILED,
        error=error,
        stage="supernet",
        progress={"stage": "supernet", "fraction": 0.5, "eta_seconds": 3.0, "detail": {"epoch": 2}},
        device_seconds=12.5,
        warnings=[{"code": "few_images", "detail": "400 images"}],
        attempts=2,
        revision=9,
    )
    job = api.get(f"/jobs/{public(job_id)}").json()
    assert (job["error"]["code"], job["error"]["retryable"]) == ("loss_diverged", False)
    assert job["progress"] == {"stage": "supernet", "fraction": 0.5, "eta_seconds": 3.0, "detail": {"epoch": 2}}
    assert (job["usage"], job["attempt"], job["revision"]) == ({"device_seconds": 12.5}, 2, 9)
    assert job["warnings"][0]["code"] == "few_images"
    assert job["finished_at"].endswith("Z")


@pytest.mark.parametrize("deadline", ["2030-01-01T00:00:00Z", None])
def test_a_running_job_tells_when_its_time_is_up(
    api: TestClient, session: Session, owner: str, deadline: str | None
) -> None:
    at = None if deadline is None else datetime.fromisoformat(deadline)
    job_id = add_job(session, owner, JobState.RUNNING, deadline_at=at)
    assert api.get(f"/jobs/{public(job_id)}").json()["deadline_at"] == deadline


def test_pages_are_stable_while_jobs_are_added(api: TestClient, session: Session, owner: str) -> None:
    expected = [public(add_job(session, owner)) for _ in range(5)][::-1]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = api.get("/jobs", params={"limit": 2, **({"after": cursor} if cursor else {})}).json()
        seen += [entry["id"] for entry in page["data"]]
        add_job(session, owner)
        if not page["has_more"]:
            assert page["next"] is None
            break
        cursor = page["next"]
    assert seen == expected


def test_jobs_can_be_listed_by_kind_and_age(api: TestClient, session: Session, owner: str) -> None:
    old = add_job(session, owner, created_at=datetime.now(UTC) - timedelta(days=2))
    imported = add_job(session, owner, kind=JobKind.DATASET_IMPORT)
    by_kind = api.get("/jobs", params={"kind": "dataset_import"}).json()["data"]
    assert [entry["id"] for entry in by_kind] == [public(imported)]
    yesterday = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    recent = [entry["id"] for entry in api.get("/jobs", params={"created_after": yesterday}).json()["data"]]
    assert public(old) not in recent
    assert public(imported) in recent


def test_an_unchanged_job_is_not_sent_again(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    first = api.get(f"/jobs/{public(job_id)}")
    etag = first.headers["ETag"]
    again = api.get(f"/jobs/{public(job_id)}", headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    transitions.request_cancel(session, job_id)
    session.commit()
    changed = api.get(f"/jobs/{public(job_id)}", headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["status"]) == (200, "cancelling")


def test_the_place_in_the_queue_is_part_of_the_tag(alone: TestClient) -> None:
    first, second = (alone.post("/search", json=TINY).json()["id"] for _ in range(2))
    tag = alone.get(f"/jobs/{second}").headers["ETag"]
    assert alone.get(f"/jobs/{second}").json()["queue"]["position"] == 2
    alone.post(f"/jobs/{first}/cancel")
    moved = alone.get(f"/jobs/{second}", headers={"If-None-Match": tag})
    assert (moved.status_code, moved.json()["queue"]["position"]) == (200, 1)


def until_watched(api: TestClient, job_id: UUID) -> None:
    """Return when a request waits for the job."""
    parts: Services = api.app.state.services  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while job_id not in parts.listener._watches:
        assert time.monotonic() < deadline, "no request waits"
        time.sleep(0.01)


def wait_in_thread(api: TestClient, path: str, headers: dict[str, str]) -> tuple[Any, ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1)
    return pool.submit(api.get, path, headers=headers), pool


def test_a_waiting_client_is_answered_at_the_change(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    path = f"/jobs/{public(job_id)}"
    tag = api.get(path).headers["ETag"]
    started = time.monotonic()
    answer, pool = wait_in_thread(api, path, {"Prefer": "wait=60", "If-None-Match": tag})
    with pool:
        until_watched(api, job_id)
        transitions.request_cancel(session, job_id)
        session.commit()
        response = answer.result(timeout=30)
    assert (response.status_code, response.json()["status"]) == (200, "cancelling")
    assert response.headers["Preference-Applied"] == "wait=60"
    assert time.monotonic() - started < 2 * POLL_S + 5


def test_waiting_ends_without_a_change(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    path = f"/jobs/{public(job_id)}"
    tag = api.get(path).headers["ETag"]
    started = time.monotonic()
    response = api.get(path, headers={"Prefer": "wait=1", "If-None-Match": tag})
    assert response.status_code == 304
    assert 0.9 < time.monotonic() - started < 10


def test_nobody_waits_for_a_job_that_is_done(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.SUCCEEDED)
    started = time.monotonic()
    assert api.get(f"/jobs/{public(job_id)}", headers={"Prefer": "wait=60"}).status_code == 200
    assert time.monotonic() - started < 10


def test_actions_change_the_job_and_may_be_repeated(api: TestClient) -> None:
    job = api.post("/search", json=TINY).json()["id"]
    for action, status in [
        ("pause", "paused"),
        ("pause", "paused"),
        ("resume", "queued"),
        ("cancel", "cancelled"),
        ("cancel", "cancelled"),
        ("retry", "queued"),
    ]:
        response = api.post(f"/jobs/{job}/{action}")
        assert (response.status_code, response.json()["status"]) == (202, status)


def test_cancelling_a_running_job_is_left_to_its_worker(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    response = api.post(f"/jobs/{public(job_id)}/cancel")
    assert (response.status_code, response.json()["status"], response.json()["done"]) == (202, "cancelling", False)


@pytest.mark.parametrize(
    ("state", "action", "allowed"),
    [
        (JobState.SUCCEEDED, "cancel", []),
        (JobState.SUCCEEDED, "retry", []),
        (JobState.FAILED, "pause", ["retry"]),
        (JobState.CANCELLED, "resume", ["retry"]),
        (JobState.PAUSED, "retry", ["cancel", "resume"]),
    ],
)
def test_an_impossible_action_is_refused_with_the_possible_ones(
    api: TestClient, session: Session, owner: str, state: JobState, action: str, allowed: list[str]
) -> None:
    desired = {JobState.PAUSED: Desired.PAUSE, JobState.CANCELLED: Desired.CANCEL}.get(state, Desired.RUN)
    job_id = add_job(session, owner, state, desired)
    response = api.post(f"/jobs/{public(job_id)}/{action}")
    assert (response.status_code, response.json()["code"]) == (409, "invalid_state")
    assert (response.json()["state"], response.json()["allowed"]) == (state, allowed)
    assert f"{public(job_id)} is {state}, which does not allow to {action} it" in response.json()["detail"]


def test_a_job_whose_dataset_was_deleted_cannot_be_tried_again(api: TestClient, session: Session, owner: str) -> None:
    dataset_id = add_dataset(session, owner)
    spec = {"dataset": {"id": format_id(IdKind.DATASET, dataset_id)}}
    job_id = add_job(session, owner, JobState.FAILED, spec=spec, dataset_id=dataset_id)
    assert api.delete(f"/datasets/{format_id(IdKind.DATASET, dataset_id)}").status_code == 204
    response = api.post(f"/jobs/{public(job_id)}/retry")
    assert (response.status_code, response.json()["code"]) == (409, "invalid_state")
    assert "deleted" in response.json()["detail"]


def test_checkpoints_are_listed_newest_first(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    for n in range(3):
        session.add(Checkpoint(job_id=job_id, n=n, fence=1, stage="teacher", state={}, files={"teacher": "ab" * 32}))
    session.commit()
    page = api.get(f"/jobs/{public(job_id)}/checkpoints", params={"limit": 2}).json()
    rest = api.get(f"/jobs/{public(job_id)}/checkpoints", params={"limit": 2, "after": page["next"]}).json()
    assert [c["n"] for c in page["data"] + rest["data"]] == [2, 1, 0]
    assert page["data"][0]["files"] == {"teacher": "ab" * 32}


def test_metrics_are_the_numbers_of_the_events(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    for step, stage in enumerate(["teacher", "teacher", "supernet"]):
        payload = {"stage": stage, "step": step, "values": {"loss": 1 / (step + 1), "lr": None}}
        append_event(session, job_id, EventType.METRIC, payload)
        append_event(session, job_id, EventType.LOG, {"line": "x"})
    session.commit()
    page = api.get(f"/jobs/{public(job_id)}/metrics", params={"limit": 2}).json()
    rest = api.get(f"/jobs/{public(job_id)}/metrics", params={"limit": 2, "after": page["next"]}).json()
    points = page["data"] + rest["data"]
    assert [(p["stage"], p["step"], p["values"]["loss"]) for p in points] == [
        ("teacher", 0, 1.0),
        ("teacher", 1, 0.5),
        ("supernet", 2, 1 / 3),
    ]
    assert points[0]["values"]["lr"] is None
    only = api.get(f"/jobs/{public(job_id)}/metrics", params={"stage": "supernet"}).json()["data"]
    assert [p["step"] for p in only] == [2]


def worker(name: str, queues: list[str], slots: int, busy: int, **changes: Any) -> Worker:
    return Worker(**{"name": name, "queues": queues, "slots": slots, "busy": busy, "info": {}, **changes})


def test_a_queued_job_says_why_it_waits(alone: TestClient, fresh_session: Session) -> None:
    session = fresh_session
    first = alone.post("/search", json=TINY).json()["id"]
    second = alone.post("/search", json={**TINY, "priority": 1}).json()["id"]

    def places() -> list[tuple[int, str]]:
        return [tuple(alone.get(f"/jobs/{job}").json()["queue"].values()) for job in (first, second)]

    assert places() == [(2, "no_worker"), (1, "no_worker")]
    session.add(worker("dead", ["cpu"], 4, 0, heartbeat_at=datetime.now(UTC) - timedelta(hours=1)))
    session.add(worker("gpu", ["gpu"], 1, 0))
    session.commit()
    assert places() == [(2, "no_matching_device"), (1, "no_matching_device")]
    session.add(worker("deaf", ["cpu"], 1, 0, deaf=True))
    session.commit()
    assert places() == [(2, "worker_deaf"), (1, "worker_deaf")]
    session.add(worker("full", ["cpu"], 1, 1))
    session.add(worker("leaving", ["cpu", "gpu"], 3, 0, draining=True))
    session.commit()
    assert places() == [(2, "busy"), (1, "busy")]
    session.add(worker("free", ["cpu"], 1, 0))
    session.commit()
    assert places() == [(2, "busy"), (1, "starting")]
    session.query(Job).filter(Job.priority == 1).update({"not_before": datetime.now(UTC) + timedelta(minutes=1)})
    session.commit()
    assert places() == [(2, "busy"), (1, "backoff")]


def test_workers_are_listed_with_what_they_do(alone: TestClient, fresh_session: Session) -> None:
    session = fresh_session
    assert alone.get("/readyz/workers").status_code == 503
    session.add(worker("c", ["cpu"], 1, 0, deaf=True))
    session.commit()
    refusal = alone.get("/readyz/workers")
    assert (refusal.status_code, refusal.json()["deaf"]) == (503, 1)
    assert "no message reaches them" in refusal.json()["detail"]
    session.add(worker("b", ["cpu"], 2, 1, info={"host": "h"}))
    session.add(worker("a", ["cpu"], 1, 0, heartbeat_at=datetime.now(UTC) - timedelta(hours=1)))
    session.commit()
    page = alone.get("/workers", params={"limit": 1}).json()
    rest = alone.get("/workers", params={"limit": 1, "after": page["next"]}).json()
    last = alone.get("/workers", params={"limit": 1, "after": rest["next"]}).json()
    found = [(w["name"], w["alive"], w["deaf"], w["busy"]) for p in (page, rest, last) for w in p["data"]]
    assert found == [("a", False, False, 0), ("b", True, False, 1), ("c", True, True, 0)]
    assert alone.get("/readyz/workers").json() == {"status": "ok", "consuming": 1}
    assert alone.get("/readyz").json() == {"status": "ok", "database": "ok", "broker": "ok"}


def test_many_clients_can_wait_at_once(api: TestClient, session: Session, owner: str) -> None:
    """Waiting must not hold a database connection: there are far fewer of those than of waiting clients."""
    job_id = add_job(session, owner, JobState.RUNNING)
    path = f"/jobs/{public(job_id)}"
    tag = api.get(path).headers["ETag"]
    gate = threading.Barrier(41)

    def wait() -> int:
        gate.wait(timeout=60)
        return api.get(path, headers={"Prefer": "wait=60", "If-None-Match": tag}).status_code

    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(wait) for _ in range(40)]
        gate.wait(timeout=60)
        assert api.get("/jobs").status_code == 200
        transitions.request_cancel(session, job_id)
        session.commit()
        assert {answer.result(timeout=60) for answer in answers} == {200}


def test_helpers_are_a_count_of_their_search_and_in_no_list_of_jobs(
    api: TestClient, session: Session, owner: str
) -> None:
    search = add_job(session, owner, JobState.RUNNING, Desired.RUN)
    before = api.get(f"/jobs/{public(search)}")
    helper = add_job(session, owner, JobState.RUNNING, Desired.RUN, kind=JobKind.SCORING, parent_id=search)
    add_job(session, owner, JobState.QUEUED, Desired.RUN, kind=JobKind.SCORING, parent_id=search)
    after = api.get(f"/jobs/{public(search)}", headers={"If-None-Match": before.headers["ETag"]})
    assert (before.json()["helpers"], after.json()["helpers"]) == (0, 1)
    assert public(helper) not in {job["id"] for job in api.get("/jobs").json()["data"]}
    assert public(helper) in {job["id"] for job in api.get("/jobs", params={"kind": "scoring"}).json()["data"]}
