"""Searches that go on longer."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.datasets.builtin import BUILTINS
from service.db.models import Checkpoint, Desired, JobKind, JobState, Supernet
from service.ids import IdKind, format_id
from service.store import ArtifactStore
from tests.integration.api.rows import add_artifact, add_job

SEARCH = {"algorithm": "evolution", "population": 10, "generations": 4, "max_evaluations": 50}


def search_state(told: int, pending: int) -> dict[str, Any]:
    return {"search": {"state": {"told": told, "pending": [[[], []]] * pending}}, "baseline": None}


@pytest.fixture
def paused(api: TestClient, session: Session, owner: str) -> Any:
    def make(status: JobState = JobState.PAUSED, search: dict[str, Any] = SEARCH, **checkpoint: Any) -> str:
        desired = Desired.PAUSE if status is JobState.PAUSED else Desired.RUN
        spec = {"dataset": {"id": "digits"}, "search": search, "budget": {"max_wall_seconds": 60}}
        job_id = add_job(session, owner, status, desired, spec=spec)
        if checkpoint:
            values: dict[str, Any] = {"stage": "search", "outputs": {}, "state": {}, **checkpoint}
            row = Checkpoint(job_id=job_id, n=1, fence=1, stage=values["stage"], state=values, files={})
            session.add(row)
            session.commit()
        return f"/jobs/{format_id(IdKind.JOB, job_id)}"

    return make


@pytest.mark.parametrize(
    "checkpoint",
    [
        {},
        {"stage": "supernet"},
        {"state": {"zero_cost": []}},
        {"state": search_state(told=20, pending=10)},
        {"state": search_state(told=50, pending=0)},  # over, and every generation was full
    ],
)
def test_a_paused_search_goes_on_with_the_new_totals(api: TestClient, paused: Any, checkpoint: dict[str, Any]) -> None:
    path = paused(**checkpoint)
    body = {"generations": 9, "max_evaluations": 100, "max_wall_seconds": 90}
    for _ in range(2):  # a repetition changes nothing
        answer = api.post(f"{path}/extend", json=body)
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    spec = api.get(path).json()["spec"]
    assert spec["search"] == {**SEARCH, "generations": 9, "max_evaluations": 100}
    assert spec["budget"] == {"max_wall_seconds": 90}
    reasons = [e["data"]["reason"] for e in api.get(f"{path}/events").json()["data"] if e["type"] == "job.status"]
    assert reasons == ["resume"]


@pytest.mark.parametrize(
    "checkpoint",
    [
        {"stage": "retrain", "outputs": {"search": {}}},
        {"outputs": {"search": {}}},
        {"state": {**search_state(told=50, pending=0), "baseline": {}}},
    ],
)
def test_a_search_that_is_over_stays_over_but_may_get_time(
    api: TestClient, paused: Any, checkpoint: dict[str, Any]
) -> None:
    path = paused(**checkpoint)
    refused = api.post(f"{path}/extend", json={"generations": 9, "max_evaluations": 100})
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    assert "its search is over" in refused.json()["detail"]
    assert refused.json()["allowed"] == ["cancel", "resume"]
    assert api.post(f"{path}/extend", json={"max_wall_seconds": 61}).status_code == 202


def test_a_generation_that_was_cut_cannot_be_made_whole(api: TestClient, paused: Any) -> None:
    path = paused(search={**SEARCH, "max_evaluations": 45}, state=search_state(told=40, pending=5))
    refused = api.post(f"{path}/extend", json={"max_evaluations": 100, "generations": 9})
    assert (refused.status_code, "cut to 45" in refused.json()["detail"]) == (409, True)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.FAILED])
def test_a_job_that_waits_runs_or_failed_cannot_be_extended(api: TestClient, paused: Any, state: JobState) -> None:
    path = paused(state)
    refused = api.post(f"{path}/extend", json={"max_wall_seconds": 61})
    assert (refused.status_code, refused.json()["state"]) == (409, state.value)
    assert api.get(path).json()["spec"]["budget"] == {"max_wall_seconds": 60}


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({}, "", "nothing_asked"),
        ({"generations": 3}, "/generations", "too_low"),
        ({"generations": 9}, "/generations", "no_effect"),
        ({"max_evaluations": 60}, "/max_evaluations", "no_effect"),
        ({"epochs": 3}, "/epochs", None),
    ],
)
def test_totals_without_effect_are_refused(
    api: TestClient, paused: Any, body: dict[str, int], pointer: str, code: str | None
) -> None:
    answer = api.post(f"{paused()}/extend", json=body)
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, pointer)
    assert code in (None, error["code"])


def test_a_job_without_such_limits_has_nothing_to_raise(api: TestClient, paused: Any) -> None:
    listed = paused(search={**SEARCH, "algorithm": "listed"})
    assert api.post(f"{listed}/extend", json={"max_evaluations": 60}).status_code == 422
    other = paused(search={})
    answer = api.post(f"{other}/extend", json={"generations": 60})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "no_such_limit")


def test_a_race_is_run_to_the_length_that_was_asked_for(api: TestClient, paused: Any) -> None:
    answer = api.post(f"{paused(search={**SEARCH, 'evaluation': {'racing': 0.05}})}/extend", json=LONGER)
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "racing_fixes_length")


LONGER = {"generations": 30, "max_evaluations": 3000}


@pytest.fixture
def succeeded(api: TestClient, session: Session, owner: str, store: ArtifactStore) -> Any:
    def make(search: dict[str, Any] | None = None, *, keeps_search: bool = True, **changes: Any) -> str:
        body = {"method": "masktas", "dataset": "digits", "search": search or {}}
        asked = api.post("/search/validate", json=body).json()
        result = {"evaluations": 1000}
        values = {"spec": asked["spec"], "result": result, "stop_reason": "max_evaluations", "stage": "report"}
        job_id = add_job(session, owner, JobState.SUCCEEDED, **{**values, **changes})
        row = Supernet(
            owner=owner,
            job_id=job_id,
            method="masktas",
            space=asked["space"],
            sha256="cd" * 32,
            info={
                "dataset": BUILTINS["digits"].digest,
                "spec": {part: asked["spec"][part] for part in ("dataset", "teacher", "supernet")},
                "files": {},
                "outputs": {"teacher": {"architecture": {"embed_dim": 48}}},
            },
        )
        session.add(row)
        if keeps_search:
            add_artifact(session, store, job_id, b"{}", "search.jsonl", kind="search")
        session.commit()
        return f"/jobs/{format_id(IdKind.JOB, job_id)}"

    return make


def test_a_search_that_has_succeeded_goes_on_as_a_new_job(api: TestClient, succeeded: Any) -> None:
    path = succeeded()
    before = api.get(path).json()
    answer = api.post(f"{path}/extend", json=LONGER)
    assert answer.status_code == 201, answer.json()
    new = answer.json()
    assert answer.headers["Location"] == f"/jobs/{new['id']}"
    assert (new["parent"], new["status"]) == (before["id"], "queued")
    assert api.get(path).json() == before
    old, spec = before["spec"], new["spec"]
    assert spec["warm_start"]["supernet"].startswith("sn_")
    assert spec == {**old, "warm_start": spec["warm_start"], "search": {**old["search"], **LONGER}}
    assert api.post("/search", json=spec).json()["spec"] == spec


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"stop_reason": "space_exhausted"}, "all networks"),
        ({"keeps_search": False}, "did not keep"),
        ({"search": {"population": 40, "max_evaluations": 990}, "result": {"evaluations": 990}}, "cut to 990"),
        ({"kind": JobKind.EXTRACT}, "searches of architectures"),
    ],
)
def test_a_search_that_cannot_go_on_exactly_is_refused(
    api: TestClient, succeeded: Any, job: dict[str, Any], why: str
) -> None:
    answer = api.post(f"{succeeded(**job)}/extend", json=LONGER)
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert why in answer.json()["detail"]


def test_more_time_alone_helps_a_search_whose_time_was_up(api: TestClient, succeeded: Any) -> None:
    budget = {"method": "masktas", "dataset": "digits", "budget": {"max_wall_seconds": 60}}
    spec = api.post("/search/validate", json=budget).json()["spec"]
    wanted = {"max_wall_seconds": 90}
    refused = api.post(f"{succeeded(spec=spec)}/extend", json=wanted)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "no_effect")
    answer = api.post(f"{succeeded(spec=spec, stop_reason='budget')}/extend", json=wanted)
    assert (answer.status_code, answer.json()["spec"]["budget"]) == (201, {**wanted, "max_device_hours": None})


def test_strangers_see_no_such_job(stranger: TestClient, paused: Any) -> None:
    assert stranger.post(f"{paused()}/extend", json={"max_wall_seconds": 61}).status_code == 404
