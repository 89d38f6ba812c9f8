"""Jobs that are done once more."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, update
from sqlalchemy.orm import Session

from service.db.models import Job, JobKind, JobState
from service.ids import IdKind, format_id, parse_id
from tests.integration.api.rows import add_job

SEARCHES: list[dict[str, Any]] = [
    {"method": "masktas", "dataset": "digits", "seed": 7, "priority": 3, "metadata": {"who": "me"}, "name": "mine"},
    {"method": "scala", "dataset": "digits", "seed": 7, "constraints": [{"metric": "params_m", "max": 0.2}]},
]


@pytest.mark.parametrize("body", SEARCHES, ids=["masktas", "scala"])
def test_a_replay_is_a_new_job_with_the_same_spec_and_seed(
    api: TestClient, session: Session, body: dict[str, Any]
) -> None:
    first = api.post("/search", json=body).json()
    key = parse_id(IdKind.JOB, first["id"])
    session.execute(
        update(Job).where(Job.id == key).values(state=JobState.SUCCEEDED, attempts=2, finished_at=func.now())
    )
    session.commit()
    answer = api.post(f"/jobs/{first['id']}/replay")
    again = answer.json()
    assert (answer.status_code, again["status"], again["attempt"]) == (202, "queued", 0)
    assert answer.headers["Location"].endswith(f"/jobs/{again['id']}")
    assert again["id"] != first["id"]
    same = ("kind", "name", "spec", "seed", "priority", "metadata", "parent", "warnings")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert api.get(f"/jobs/{first['id']}").json()["status"] == "succeeded"


def test_a_repeated_request_with_a_key_replays_once(api: TestClient) -> None:
    first = api.post("/search", json=SEARCHES[0]).json()["id"]
    answers = [api.post(f"/jobs/{first}/replay", headers={"Idempotency-Key": "once"}) for _ in range(3)]
    assert len({answer.json()["id"] for answer in answers}) == 1


@pytest.mark.parametrize("kind", [JobKind.DATASET_IMPORT, JobKind.TEACHER_IMPORT, JobKind.SCORING])
def test_imports_are_sent_again_instead(api: TestClient, session: Session, owner: str, kind: JobKind) -> None:
    job = format_id(IdKind.JOB, add_job(session, owner, JobState.SUCCEEDED, kind=kind))
    answer = api.post(f"/jobs/{job}/replay")
    assert (answer.status_code, answer.json()["code"]) == (409, "invalid_state")
    assert answer.json()["allowed"] == ["search", "extract", "transfer"]


def test_what_cannot_be_done_again_says_why(api: TestClient, session: Session, owner: str) -> None:
    gone = "ds_00000000000000000000000000000000"
    spec = {**api.post("/search/validate", json=SEARCHES[0]).json()["spec"], "dataset": {"id": gone}}
    of_old = {**spec, "dataset": {"id": "digits"}, "an_option_of_old": 1}
    found = []
    for one in (spec, of_old):
        job = format_id(IdKind.JOB, add_job(session, owner, JobState.FAILED, spec=one))
        answer = api.post(f"/jobs/{job}/replay").json()
        found.append((answer["code"], gone in answer["detail"] or "another version" in answer["detail"]))
    assert found == [("validation_failed", True), ("invalid_state", True)]
    unknown = format_id(IdKind.JOB, parse_id(IdKind.JOB, "job_00000000000000000000000000000000"))
    assert api.post(f"/jobs/{unknown}/replay").status_code == 404
