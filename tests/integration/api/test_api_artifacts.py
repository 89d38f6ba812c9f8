"""Downloads: whole, in part, conditional."""

from __future__ import annotations

import hashlib
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from service.db.models import Artifact, JobState
from service.ids import IdKind, format_id
from service.store import ArtifactStore
from tests.integration.api.rows import add_artifact, add_job

CONTENT = bytes(range(256)) * 5000  # more than one chunk of the store
SIZE = len(CONTENT)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def job_id(session: Session, owner: str) -> UUID:
    return add_job(session, owner, JobState.SUCCEEDED)


@pytest.fixture
def artifact(session: Session, store: ArtifactStore, job_id: UUID) -> Artifact:
    return add_artifact(session, store, job_id, CONTENT)


@pytest.fixture
def path(artifact: Artifact) -> str:
    return f"/artifacts/{format_id(IdKind.ARTIFACT, artifact.id)}/content"


def test_a_jobs_files_are_listed(
    api: TestClient, session: Session, store: ArtifactStore, job_id: UUID, artifact: Artifact
) -> None:
    add_artifact(session, store, job_id, b"x", "model.py", media_type="text/x-python")
    files = f"/jobs/{format_id(IdKind.JOB, job_id)}/artifacts"
    page = api.get(files, params={"limit": 1}).json()
    rest = api.get(files, params={"after": page["next"]}).json()
    found = page["data"] + rest["data"]
    assert [(f["name"], f["size_bytes"]) for f in found] == [("weights.safetensors", SIZE), ("model.py", 1)]
    assert found[0]["sha256"] == DIGEST
    assert api.get(f"/artifacts/{found[0]['id']}").json() == found[0]
    assert api.get(found[0]["content"]).content == CONTENT


def test_a_whole_file_with_its_digest_as_tag(api: TestClient, path: str) -> None:
    response = api.get(path)
    assert (response.status_code, response.content) == (200, CONTENT)
    headers = response.headers
    assert headers["ETag"] == f'"{DIGEST}"'
    assert headers["Content-Length"] == str(SIZE)
    assert headers["Accept-Ranges"] == "bytes"
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith('attachment; filename="weights.safetensors"')
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_head_gives_the_same_headers_and_no_bytes(api: TestClient, path: str) -> None:
    whole, head = api.get(path), api.head(path)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("ETag", "Content-Length", "Content-Type", "Accept-Ranges", "Content-Disposition", "Cache-Control"):
        assert head.headers[name] == whole.headers[name], name


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=1048570-1048585", 1048570, 1048586),  # across the store's chunks
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
        (f"bytes=5-{SIZE * 2}", 5, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=-{SIZE * 2}", 0, SIZE),
    ],
)
def test_one_range_is_served(api: TestClient, path: str, asked: str, start: int, end: int) -> None:
    response = api.get(path, headers={"Range": asked})
    assert (response.status_code, response.content) == (206, CONTENT[start:end])
    assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert response.headers["Content-Length"] == str(end - start)
    assert response.headers["ETag"] == f'"{DIGEST}"'


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(api: TestClient, path: str, asked: str) -> None:
    response = api.get(path, headers={"Range": asked})
    assert (response.status_code, response.json()["code"]) == (416, "range_not_satisfiable")
    assert response.headers["Content-Range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,5-6", "lines=1-2", "bytes=5-2", "bytes=-", "bytes", "bytes=a-b", "bytes=" + "9" * 5000 + "-"]
)
def test_ranges_that_are_not_served_give_the_whole_file(api: TestClient, path: str, asked: str) -> None:
    response = api.get(path, headers={"Range": asked})
    assert (response.status_code, len(response.content)) == (200, SIZE)


@pytest.mark.parametrize(
    ("condition", "status"), [(f'"{DIGEST}"', 206), (f'W/"{DIGEST}"', 200), ('"other"', 200), ("yesterday", 200)]
)
def test_a_range_is_only_for_the_same_content(api: TestClient, path: str, condition: str, status: int) -> None:
    response = api.get(path, headers={"Range": "bytes=0-9", "If-Range": condition})
    assert (response.status_code, len(response.content)) == (status, 10 if status == 206 else SIZE)


@pytest.mark.parametrize("known", [f'"{DIGEST}"', f'W/"{DIGEST}"', f'"x", "{DIGEST}"', "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_the_client_has_is_not_sent(api: TestClient, path: str, known: str, method: str) -> None:
    response = api.request(method, path, headers={"If-None-Match": known, "Range": "bytes=0-1"})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["ETag"] == f'"{DIGEST}"'


def test_other_content_is_sent(api: TestClient, path: str) -> None:
    assert api.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_an_empty_file_can_be_fetched(api: TestClient, session: Session, store: ArtifactStore, job_id: UUID) -> None:
    artifact = add_artifact(session, store, job_id, b"")
    path = f"/artifacts/{format_id(IdKind.ARTIFACT, artifact.id)}/content"
    assert (api.get(path).status_code, api.get(path).content) == (200, b"")
    assert api.get(path, headers={"Range": "bytes=0-"}).status_code == 416


@pytest.mark.parametrize("name", ['a"b.bin', "../../etc/passwd", "Größe.json", "x\r\nSet-Cookie: a=b", "图.bin"])
def test_file_names_cannot_break_out_of_the_header(
    api: TestClient, session: Session, store: ArtifactStore, job_id: UUID, name: str
) -> None:
    artifact = add_artifact(session, store, job_id, b"x", name)
    response = api.get(f"/artifacts/{format_id(IdKind.ARTIFACT, artifact.id)}/content")
    assert response.status_code == 200
    assert "Set-Cookie" not in response.headers
    plain = response.headers["Content-Disposition"].split('"')[1]
    assert "/" not in plain
    assert '"' not in plain


def test_somebody_elses_file_does_not_exist(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 404
    assert stranger.get(path.removesuffix("/content")).status_code == 404
    assert stranger.head(path).status_code == 404


def test_a_lost_blob_is_a_fault_of_the_service(
    api: TestClient, store: ArtifactStore, artifact: Artifact, path: str
) -> None:
    store.delete(artifact.sha256)
    with capture_logs() as logs:
        response = api.get(path)
    assert "request_failed" in {entry["event"] for entry in logs}
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert artifact.sha256 not in response.text
