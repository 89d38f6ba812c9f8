"""Datasets: built-ins, imports, and paths that must not lead elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.models import Dataset, Job, JobState
from service.errors import DatasetInvalid
from service.ids import IdKind, format_id, parse_id
from tests.integration.api.rows import add_dataset, add_job


@pytest.fixture
def folder(import_root: Path, owner: str) -> Path:
    """A folder of one's own below the import root."""
    path = import_root / owner
    path.mkdir()
    return path


def body(path: str, name: str = "leaves", **source: str) -> dict[str, Any]:
    return {"name": name, "source": {"path": path, **source}}


def count(session: Session, owner: str) -> tuple[int, int]:
    session.rollback()
    rows = [
        session.scalar(select(func.count()).select_from(model).where(model.owner == owner)) for model in (Dataset, Job)
    ]
    return rows[0] or 0, rows[1] or 0


def test_builtins_are_listed_first_and_have_a_name_for_id(api: TestClient, session: Session, owner: str) -> None:
    mine = [format_id(IdKind.DATASET, add_dataset(session, owner, f"d{n}")) for n in range(3)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = api.get("/datasets", params={"limit": 1, **({"after": cursor} if cursor else {})}).json()
        found += [entry["id"] for entry in page["data"]]
        if not page["has_more"]:
            break
        cursor = page["next"]
    assert found == ["digits", *mine[::-1]]
    digits = api.get("/datasets/digits").json()
    assert (digits["kind"], digits["status"], digits["counts"]["images"]) == ("builtin", "ready", 1797)
    assert len(digits["digest"]) == 64


def test_an_import_is_queued_and_validating(api: TestClient, folder: Path, owner: str) -> None:
    (folder / "leaves").mkdir()
    response = api.post("/datasets", json=body(f"{owner}/leaves", labels="none"))
    assert response.status_code == 202, response.text
    dataset = response.json()
    assert response.headers["Location"] == f"/datasets/{dataset['id']}"
    assert (dataset["status"], dataset["version"], dataset["digest"]) == ("validating", 1, None)
    assert dataset["source"] == {
        "path": f"{owner}/leaves",
        "format": "auto",
        "labels": "none",
        "max_skipped": 0.05,
        "reject_on": [],
    }
    job = api.get(f"/jobs/{dataset['job']}").json()
    assert (job["kind"], job["status"], job["spec"]) == ("dataset_import", "queued", dataset["source"])
    assert api.get(f"/datasets/{dataset['id']}").json() == dataset
    assert api.get(f"/datasets/{dataset['id']}/report").status_code == 404


def test_a_name_that_exists_gets_a_further_version(api: TestClient, folder: Path, owner: str) -> None:
    versions = [api.post("/datasets", json=body(owner)).json()["version"] for _ in range(3)]
    assert versions == [1, 2, 3]
    assert api.post("/datasets", json=body(owner, name="other")).json()["version"] == 1


def test_a_cancelled_import_rejects_its_dataset(api: TestClient, folder: Path, owner: str) -> None:
    dataset = api.post("/datasets", json=body(owner)).json()
    api.post(f"/jobs/{dataset['job']}/cancel")
    shown = api.get(f"/datasets/{dataset['id']}").json()
    assert (shown["status"], shown["error"]["code"]) == ("rejected", "dataset_invalid")
    api.post(f"/jobs/{dataset['job']}/retry")
    assert api.get(f"/datasets/{dataset['id']}").json()["status"] == "validating"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("..", "path_outside_root"),
        ("../imports-of-others", "path_outside_root"),
        ("a/../../x", "path_outside_root"),
        ("/etc/passwd", "path_outside_root"),
        ("link-out", "path_outside_root"),
        ("link-out/passwd", "path_outside_root"),
        ("nothing-here", "path_not_found"),
        ("link-loop", "path_not_found"),
        ("x" * 4000, "path_not_found"),
        ("~root", "path_not_found"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(
    api: TestClient, session: Session, import_root: Path, owner: str, path: str, code: str
) -> None:
    for name, target in [("link-out", "/etc"), ("link-loop", "link-loop")]:
        if not (import_root / name).is_symlink():
            (import_root / name).symlink_to(target)
    response = api.post("/datasets", json=body(path), headers={"Idempotency-Key": "k"})
    assert response.status_code == 422
    assert [(e["pointer"], e["code"]) for e in response.json()["errors"]] == [("/source/path", code)]
    assert str(import_root) not in response.text
    assert count(session, owner) == (0, 0)


def test_links_inside_the_root_are_followed_to_what_they_mean(api: TestClient, folder: Path, owner: str) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    assert api.post("/datasets", json=body(f"{owner}/link")).json()["source"]["path"] == f"{owner}/real"


def test_without_an_import_root_nothing_is_imported(alone: TestClient) -> None:
    response = alone.post("/datasets", json=body("x"))
    assert (response.status_code, response.json()["errors"][0]["code"]) == (422, "imports_disabled")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": " padded "}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"source": {"path": ""}}, "/source/path"),
        ({"source": {"path": "x", "format": "zip"}}, "/source/format"),
        ({"source": {"path": "x", "labels": "perhaps"}}, "/source/labels"),
        ({"source": {"path": "x", "max_skipped": 1}}, "/source/max_skipped"),
        ({"source": {"path": "x", "reject_on": ["nonsense"]}}, "/source/reject_on/0"),
        ({"source": {"url": "http://x"}}, "/source/url"),
        ({"owner": "eve"}, "/owner"),
    ],
)
def test_bad_fields_are_refused(api: TestClient, change: dict[str, Any], pointer: str) -> None:
    response = api.post("/datasets", json={**body("x"), **change})
    assert response.status_code == 422
    assert pointer in {item["pointer"] for item in response.json()["errors"]}


def test_the_findings_of_an_import_can_be_read(api: TestClient, session: Session, owner: str) -> None:
    dataset = format_id(IdKind.DATASET, add_dataset(session, owner))
    shown = api.get(f"/datasets/{dataset}").json()
    assert shown["report"] == f"/datasets/{dataset}/report"
    assert api.get(shown["report"]).json() == {"dataset": dataset, "status": "ready", "report": {"findings": []}}
    assert api.get("/datasets/digits/report").status_code == 404


def test_a_rejected_import_shows_its_findings_too(api: TestClient, session: Session, owner: str) -> None:
    error = DatasetInvalid("no row can be used", extra={"report": {"findings": [{"code": "x"}]}}).to_json()
    dataset = format_id(IdKind.DATASET, add_dataset(session, owner, status="rejected", error=error))
    shown = api.get(f"/datasets/{dataset}").json()
    assert (shown["error"]["code"], shown["error"]["detail"]) == ("dataset_invalid", "no row can be used")
    assert "report" not in shown["error"]
    assert api.get(shown["report"]).json()["report"] == {"findings": [{"code": "x"}]}


def test_a_dataset_in_use_is_kept(api: TestClient, session: Session, owner: str) -> None:
    dataset_id = add_dataset(session, owner)
    job_id = add_job(session, owner, dataset_id=dataset_id)
    path = f"/datasets/{format_id(IdKind.DATASET, dataset_id)}"
    response = api.delete(path)
    assert (response.status_code, response.json()["code"]) == (409, "dataset_in_use")
    assert response.json()["jobs"] == [format_id(IdKind.JOB, job_id)]
    api.post(f"/jobs/{format_id(IdKind.JOB, job_id)}/cancel")
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404
    assert api.delete(path).status_code == 404
    assert api.get(f"/jobs/{format_id(IdKind.JOB, job_id)}").status_code == 200


def test_an_import_under_way_keeps_its_dataset(api: TestClient, folder: Path, owner: str) -> None:
    dataset = api.post("/datasets", json=body(owner)).json()["id"]
    assert api.delete(f"/datasets/{dataset}").json()["code"] == "dataset_in_use"


def test_builtins_cannot_be_deleted(api: TestClient) -> None:
    response = api.delete("/datasets/digits")
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")


def test_somebody_elses_dataset_does_not_exist(stranger: TestClient, session: Session, owner: str) -> None:
    dataset = format_id(IdKind.DATASET, add_dataset(session, owner))
    assert [entry["id"] for entry in stranger.get("/datasets").json()["data"]] == ["digits"]
    assert stranger.get(f"/datasets/{dataset}").status_code == 404
    assert stranger.get(f"/datasets/{dataset}/report").status_code == 404
    assert stranger.delete(f"/datasets/{dataset}").status_code == 404
    assert session.get(Dataset, parse_id(IdKind.DATASET, dataset)) is not None


def test_a_job_of_somebody_else_does_not_show(api: TestClient, session: Session, owner: str) -> None:
    dataset_id = add_dataset(session, owner)
    add_job(session, "eve", JobState.QUEUED, kind="dataset_import", dataset_id=dataset_id)
    assert api.get(f"/datasets/{format_id(IdKind.DATASET, dataset_id)}").json()["job"] is None
