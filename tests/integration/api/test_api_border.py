"""What every request meets: keys, scopes, unknown paths and parameters, faults that must not leak."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from service import app as application
from service.db.migrate import upgrade
from service.db.models import ApiKey, JobState
from service.jobs import service as job_service
from service.keys.service import BadKey, ensure_bootstrap_key, new_key
from service.keys.tokens import Token
from service.pagination import encode_cursor
from service.settings import Settings
from tests.integration.api.conftest import NewClient, serving
from tests.integration.api.rows import TINY, add_job, add_key
from tests.waiting import wait_until

PROBLEM_FIELDS = {"type", "title", "status", "detail", "instance", "code", "request_id", "retryable", "errors"}


def prefix_of(key: str) -> str:
    token = Token.parse(key)
    assert token is not None
    return token.prefix


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Basic dnQ6eA==",
        "Bearer nonsense",
        "Bearer vt_abcdefgh_" + "x" * 43,
        "Bearer vt_" + "é" * 60,
    ],
)
@pytest.mark.parametrize("path", ["/jobs", "/artifacts/x/content", "/nothing/here"])
def test_without_a_valid_key_there_is_nothing(running: TestClient, path: str, header: str | None) -> None:
    headers = [] if header is None else [(b"Authorization", header.encode())]
    response = running.get(path, headers=headers)
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_the_key_is_checked_before_the_body(running: TestClient) -> None:
    response = running.post("/search", content=b"{", headers={"Content-Type": "application/json"})
    assert response.status_code == 401


def test_a_known_id_with_another_secret_is_refused(client_with: NewClient, session: Session, owner: str) -> None:
    key = add_key(session, owner=owner, scopes=["admin"])
    forged = prefix_of(key) + "_" + new_key().split("_", 2)[2]
    assert client_with(key).get("/jobs").status_code == 200
    assert client_with(forged).get("/jobs").status_code == 401


@pytest.mark.parametrize("field", ["revoked_at", "expires_at"])
def test_revoked_and_expired_keys_are_refused(client_with: NewClient, session: Session, owner: str, field: str) -> None:
    key = add_key(session, owner=owner, scopes=["admin"], **{field: datetime.now(UTC) - timedelta(seconds=1)})
    assert client_with(key).get("/jobs").status_code == 401


def test_a_key_that_expires_later_is_valid(client_with: NewClient, session: Session, owner: str) -> None:
    key = add_key(session, owner=owner, scopes=["admin"], expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert client_with(key).get("/jobs").status_code == 200


@pytest.mark.parametrize(
    ("scopes", "method", "path", "status"),
    [
        (["jobs:read"], "GET", "/jobs", 200),
        (["jobs:read"], "POST", "/search", 403),
        (["jobs:read"], "POST", "/search/validate", 200),
        (["jobs:write"], "POST", "/search", 202),
        (["jobs:write"], "GET", "/jobs", 403),
        (["jobs:read", "jobs:write"], "GET", "/artifacts/art_" + "0" * 32, 403),
        (["artifacts:read"], "GET", "/artifacts/art_" + "0" * 32, 404),
        (["artifacts:read"], "GET", "/jobs", 403),
        ([], "GET", "/workers", 403),
        (["agent"], "GET", "/jobs", 403),
        (["agent"], "POST", "/search", 403),
        (["admin"], "POST", "/search", 202),
    ],
)
def test_scopes_open_what_they_name(
    client_with: NewClient, session: Session, owner: str, scopes: list[str], method: str, path: str, status: int
) -> None:
    client = client_with(add_key(session, owner=owner, scopes=scopes))
    response = client.request(method, path, json=TINY if method == "POST" else None)
    assert response.status_code == status
    if status == 403:
        assert response.json()["code"] == "forbidden"
        assert response.json()["required"][0] in response.json()["detail"]


def test_use_of_a_key_is_noted_at_most_once_a_minute(client_with: NewClient, session: Session, owner: str) -> None:
    key = add_key(session, owner=owner, scopes=["admin"])
    of_key = ApiKey.prefix == prefix_of(key)

    def last_used() -> datetime | None:
        session.rollback()
        return session.scalar(select(ApiKey.last_used_at).where(of_key))

    client_with(key).get("/jobs")
    first = last_used()
    client_with(key).get("/jobs")
    assert first is not None
    assert last_used() == first
    long_ago = first - timedelta(seconds=61)
    session.execute(update(ApiKey).where(of_key).values(last_used_at=long_ago))
    session.commit()
    client_with(key).get("/jobs")
    assert last_used() != long_ago


def test_bootstrap_key_is_made_once_and_stays_revoked(session: Session) -> None:
    key = new_key()
    ensure_bootstrap_key(session, key)
    ensure_bootstrap_key(session, key)
    (row,) = session.scalars(select(ApiKey).where(ApiKey.prefix == prefix_of(key))).all()
    assert (row.owner, row.scopes) == ("default", ["admin"])
    row.revoked_at = datetime.now(UTC)
    ensure_bootstrap_key(session, key)
    session.flush()
    session.refresh(row)
    assert row.revoked_at is not None


def test_bootstrap_key_must_be_a_key_and_have_an_id_of_its_own(session: Session) -> None:
    with pytest.raises(BadKey) as caught:
        ensure_bootstrap_key(session, "my secret")
    assert "my secret" not in str(caught.value)
    key = new_key()
    ensure_bootstrap_key(session, key)
    with pytest.raises(BadKey, match="another key"):
        ensure_bootstrap_key(session, prefix_of(key) + "_" + new_key().split("_", 2)[2])


def test_the_configured_bootstrap_key_opens_the_api(settings: Settings) -> None:
    key = new_key()
    configured = Settings(**{**settings.model_dump(), "bootstrap_key": key}, _env_file=None)
    with serving(application.create_app(configured)) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        for _ in range(100):
            if client.get("/jobs").status_code == 200:
                return
    pytest.fail("the bootstrap key was not registered")


def test_the_bootstrap_key_waits_for_the_tables(
    settings: Settings, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_RETRY_S", 0.05)
    key = new_key()
    changes = {"database_url": empty_database_url, "bootstrap_key": key}
    configured = Settings(**{**settings.model_dump(), **changes}, _env_file=None)
    with capture_logs() as logs, serving(application.create_app(configured)) as client:
        wait_until(lambda: "bootstrap_key_waits" in {entry["event"] for entry in logs}, "the key waits")
        upgrade(empty_database_url)
        headers = {"Authorization": f"Bearer {key}"}
        wait_until(lambda: client.get("/jobs", headers=headers).status_code == 200, "the key is registered")


def test_unknown_paths_are_problems(api: TestClient) -> None:
    response = api.get("/nothing/here")
    assert (response.status_code, response.headers["Content-Type"]) == (404, "application/problem+json")
    problem = response.json()
    assert set(problem) >= PROBLEM_FIELDS
    assert (problem["code"], problem["instance"]) == ("not_found", "/nothing/here")
    assert problem["request_id"] == response.headers["X-Request-ID"]


def test_a_slash_at_the_end_is_another_path(api: TestClient) -> None:
    assert api.get("/jobs/").status_code == 404


def test_wrong_methods_are_problems_that_name_the_right_ones(api: TestClient) -> None:
    response = api.put("/search")
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"
    assert response.json()["allowed"] == ["POST"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/datasets", ["GET", "POST"]), ("/datasets/x", ["DELETE", "GET"]), ("/artifacts/x/content", ["GET", "HEAD"])],
)
def test_all_methods_of_a_path_are_named(api: TestClient, path: str, allowed: list[str]) -> None:
    response = api.put(path)
    assert response.status_code == 405
    assert (response.headers["Allow"], response.json()["allowed"]) == (", ".join(allowed), allowed)


def test_a_parameter_that_is_given_twice_is_refused(api: TestClient) -> None:
    response = api.get("/jobs?status=queued&status=failed")
    assert response.status_code == 422
    (item,) = response.json()["errors"]
    assert (item["pointer"], item["code"]) == ("status", "repeated_parameter")


def test_a_refusal_is_short_however_much_is_wrong(api: TestClient) -> None:
    response = api.post("/search", json={"method": "masktas", **{f"field_{i}": 1 for i in range(20_000)}})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    assert "more faults" in response.json()["detail"]
    assert len(response.content) < 20_000
    response = api.get("/jobs?" + "&".join(f"p{i}=1" for i in range(2_000)))
    assert (response.status_code, len(response.content) < 20_000) == (422, True)


@pytest.mark.parametrize(
    ("query", "pointer", "allowed"),
    [
        ("stauts=failed", "stauts", ["after", "created_after", "kind", "limit", "status"]),
        ("limit=0", "limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("limit=101", "limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("limit=ten", "limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        (
            "kind=cooking",
            "kind",
            [
                "search",
                "dataset_import",
                "teacher_import",
                "supernet_import",
                "extract",
                "transfer",
                "latency_table",
                "scoring",
            ],
        ),
        ("created_after=yesterday", "created_after", {"type": "string", "format": "date-time"}),
        ("created_after=2026-11-30T12:00:00", "created_after", {"type": "string", "format": "date-time"}),
    ],
)
def test_bad_parameters_are_named_with_what_is_allowed(api: TestClient, query: str, pointer: str, allowed: Any) -> None:
    response = api.get(f"/jobs?{query}")
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    (item,) = response.json()["errors"]
    assert (item["pointer"], item["allowed"]) == (pointer, allowed)


@pytest.mark.parametrize("cursor", ["nonsense", "é", "W10", "WzFd", "a" * 400])
def test_a_foreign_cursor_is_refused(api: TestClient, cursor: str) -> None:
    response = api.get("/jobs", params={"after": cursor})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "after")


def test_text_that_the_database_cannot_hold_is_refused(api: TestClient, session: Session, owner: str) -> None:
    job = f"job_{add_job(session, owner).hex}"
    stage = api.get(f"/jobs/{job}/metrics", params={"stage": "a\0b"})
    assert (stage.status_code, stage.json()["errors"][0]["pointer"]) == (422, "stage")
    worker = api.get("/workers", params={"after": encode_cursor("a\0b")})
    assert (worker.status_code, worker.json()["errors"][0]["pointer"]) == (422, "after")
    position = api.get(f"/jobs/{job}/checkpoints", params={"after": encode_cursor(2**63)})
    assert (position.status_code, position.json()["errors"][0]["pointer"]) == (422, "after")


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}/events", "/architectures/{}", "/datasets/{}", "/artifacts/{}"])
@pytest.mark.parametrize("wrong", ["x", "job_1", "%00", "job_" + "g" * 32, "arch_" + "0" * 32 + "_1", "a" * 3000])
def test_ids_that_name_nothing_are_not_found(api: TestClient, path: str, wrong: str) -> None:
    response = api.get(path.format(wrong))
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


def test_the_clients_request_id_is_kept_if_it_is_a_plain_word(running: TestClient) -> None:
    assert running.get("/healthz", headers={"X-Request-ID": "trace-1.2"}).headers["X-Request-ID"] == "trace-1.2"
    assert running.get("/healthz", headers={"X-Request-ID": "a b"}).headers["X-Request-ID"] != "a b"


def test_an_unforeseen_fault_is_told_without_its_text(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(job_service, "show_jobs", broken)
    with capture_logs() as logs:
        response = api.get("/jobs")
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "swordfish" not in response.text
    assert "RuntimeError" not in response.text
    (entry,) = [entry for entry in logs if entry["event"] == "request_failed"]
    assert "swordfish" in str(entry["exc_info"])  # the operator sees it


def test_without_a_database_requests_are_to_be_repeated(tmp_path: Path, settings: Settings) -> None:
    away = settings.model_copy(update={"database_url": "postgresql+psycopg://nobody@127.0.0.1:1/none"})
    with serving(application.create_app(away)) as client:
        response = client.get("/jobs", headers={"Authorization": f"Bearer {new_key()}"})
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
        assert int(response.headers["Retry-After"]) > 0
        assert response.json()["retryable"] is True
        assert "127.0.0.1" not in response.text
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["database"], ready.json()["broker"]) == (503, "unavailable", "ok")


def test_behind_a_proxy_locations_carry_its_prefix(api: TestClient) -> None:
    proxied = TestClient(api.app, headers=dict(api.headers), root_path="/nas")
    proxied.portal = api.portal
    response = proxied.post("/nas/search", json=TINY)
    assert response.headers["Location"] == f"/nas/jobs/{response.json()['id']}"
    assert proxied.get(response.headers["Location"]).status_code == 200
    assert proxied.get("/nas/openapi.json", headers={"Authorization": ""}).json()["servers"] == [{"url": "/nas"}]


def test_owners_do_not_see_each_others_jobs(
    api: TestClient, stranger: TestClient, session: Session, owner: str
) -> None:
    job = f"job_{add_job(session, owner, JobState.QUEUED).hex}"
    assert [entry["id"] for entry in api.get("/jobs").json()["data"]] == [job]
    assert stranger.get("/jobs").json()["data"] == []
    for path in (
        "",
        "/events",
        "/candidates",
        "/pareto",
        "/artifacts",
        "/checkpoints",
        "/metrics",
        "/architecture",
        "/weights",
    ):
        assert stranger.get(f"/jobs/{job}{path}").status_code == 404, path
    for action in ("cancel", "pause", "resume", "retry"):
        assert stranger.post(f"/jobs/{job}/{action}").status_code == 404, action
    assert api.get(f"/jobs/{job}").json()["status"] == "queued"
