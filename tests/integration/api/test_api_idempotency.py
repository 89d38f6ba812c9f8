"""Idempotency keys: one intention acts once, whatever happens to its answers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from service.db.models import Idempotency, Job
from tests.integration.api.rows import TINY


def jobs_of(session: Session, owner: str) -> int:
    session.rollback()
    return session.scalar(select(func.count()).select_from(Job).where(Job.owner == owner)) or 0


def key(name: str) -> dict[str, str]:
    return {"Idempotency-Key": name}


def test_a_repetition_gets_the_first_answer(api: TestClient, session: Session, owner: str) -> None:
    first = api.post("/search", json=TINY, headers=key("a"))
    api.post(f"/jobs/{first.json()['id']}/cancel")
    again = api.post("/search", json=TINY, headers=key("a"))
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["Location"] == first.headers["Location"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert jobs_of(session, owner) == 1


def test_the_spelling_of_the_body_does_not_matter(api: TestClient, session: Session, owner: str) -> None:
    headers = {**key("a"), "Content-Type": "application/json"}
    first = api.post("/search", content=b'{"method":"masktas","dataset":"digits"}', headers=headers)
    again = api.post("/search", content=b'{ "dataset": "digits",\n "method": "masktas" }', headers=headers)
    assert again.json() == first.json()
    assert jobs_of(session, owner) == 1


def test_another_body_under_the_key_is_refused(api: TestClient, session: Session, owner: str) -> None:
    api.post("/search", json=TINY, headers=key("a"))
    other = api.post("/search", json={**TINY, "seed": 1}, headers=key("a"))
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reuse")
    assert jobs_of(session, owner) == 1


def test_another_path_under_the_key_is_refused(api: TestClient) -> None:
    job = api.post("/search", json=TINY, headers=key("a")).json()["id"]
    other = api.post(f"/jobs/{job}/cancel", headers=key("a"))
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reuse")
    assert api.get(f"/jobs/{job}").json()["status"] == "queued"


def test_without_a_key_each_request_acts(api: TestClient, session: Session, owner: str) -> None:
    for _ in range(2):
        assert api.post("/search", json=TINY).status_code == 202
    assert jobs_of(session, owner) == 2


def test_owners_have_keys_of_their_own(api: TestClient, stranger: TestClient) -> None:
    mine = api.post("/search", json=TINY, headers=key("a")).json()["id"]
    theirs = stranger.post("/search", json=TINY, headers=key("a"))
    assert theirs.status_code == 202
    assert theirs.json()["id"] != mine


def test_a_refused_request_may_be_corrected_under_its_key(api: TestClient, session: Session, owner: str) -> None:
    assert api.post("/search", json={**TINY, "seed": -1}, headers=key("a")).status_code == 422
    assert api.post("/search", json={**TINY, "dataset": "none"}, headers=key("a")).status_code == 422
    assert api.post("/search", json=TINY, headers=key("a")).status_code == 202
    assert jobs_of(session, owner) == 1


def test_a_key_is_forgotten_after_its_time(api: TestClient, session: Session, owner: str) -> None:
    first = api.post("/search", json=TINY, headers=key("a")).json()["id"]
    rows = Idempotency.owner == owner
    almost = func.now() - timedelta(hours=23, minutes=59)
    session.execute(update(Idempotency).where(rows).values(created_at=almost))
    session.commit()
    assert api.post("/search", json=TINY, headers=key("a")).json()["id"] == first
    session.execute(update(Idempotency).where(rows).values(created_at=func.now() - timedelta(hours=25)))
    session.commit()
    assert api.post("/search", json={**TINY, "seed": 1}, headers=key("b")).status_code == 202
    session.rollback()
    assert session.scalars(select(Idempotency.key).where(rows)).all() == ["b"]
    assert api.post("/search", json=TINY, headers=key("a")).json()["id"] != first


@pytest.mark.parametrize("name", ["", "x" * 256, "two words", "ключ"])
def test_a_key_must_be_a_word(api: TestClient, session: Session, owner: str, name: str) -> None:
    response = api.post("/search", json=TINY, headers=[(b"Idempotency-Key", name.encode())])
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "Idempotency-Key")
    assert jobs_of(session, owner) == 0


def test_while_the_first_runs_others_are_told_so(api: TestClient, session: Session, owner: str) -> None:
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"{owner} a"})
    response = api.post("/search", json=TINY, headers=key("a"))
    assert (response.status_code, response.json()["code"]) == (409, "idempotency_in_progress")
    assert (response.headers["Retry-After"], response.json()["retryable"]) == ("1", True)
    assert jobs_of(session, owner) == 0  # rolls back, so the lock is gone
    assert api.post("/search", json=TINY, headers=key("a")).status_code == 202


def test_simultaneous_requests_make_one_job(api: TestClient, session: Session, owner: str) -> None:
    gate = threading.Barrier(8)

    def send(_: int) -> tuple[int, str]:
        gate.wait(timeout=60)
        response = api.post("/search", json=TINY, headers=key("a"))
        return response.status_code, response.json().get("id", response.json().get("code"))

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(send, range(8)))
    assert len({told for status, told in answers if status == 202}) == 1
    assert {answer for answer in answers if answer[0] != 202} <= {(409, "idempotency_in_progress")}
    assert jobs_of(session, owner) == 1


def test_actions_and_imports_take_keys_too(api: TestClient, import_root: Path, owner: str) -> None:
    (import_root / owner).mkdir()
    body = {"name": "leaves", "source": {"path": owner}}
    made = [api.post("/datasets", json=body, headers=key("d")).json() for _ in range(2)]
    assert made[0] == made[1]
    job = made[0]["job"]
    first = api.post(f"/jobs/{job}/pause", headers=key("p"))
    api.post(f"/jobs/{job}/resume")
    again = api.post(f"/jobs/{job}/pause", headers=key("p"))
    assert again.json() == first.json()
    assert api.get(f"/jobs/{job}").json()["status"] == "queued"  # the repetition did not act again
