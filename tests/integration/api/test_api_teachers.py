"""Registering teachers, and naming them in searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save_file
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.datasets.builtin import BUILTINS
from service.db.models import Job, Supernet, Teacher
from service.ids import IdKind, format_id
from tests.integration.api.rows import add_job
from tests.published_files import HEADS, mae_full, plain
from tests.unit.models.test_foreign import understood


@pytest.fixture
def folder(import_root: Path, owner: str) -> Path:
    """A folder of one's own below the import root."""
    path = import_root / owner
    path.mkdir()
    return path


def add_teacher(session: Session, owner: str, **info: Any) -> str:
    layout = understood(plain().state).layout
    row = Teacher(
        owner=owner,
        job_id=add_job(session, owner),
        name="toy",
        sha256="ab" * 32,
        architecture=layout.arch.to_json(),
        info={"layout": layout.to_json(), **info},
    )
    session.add(row)
    session.commit()
    return format_id(IdKind.TEACHER, row.id)


def search(**teacher: Any) -> dict[str, Any]:
    return {"method": "masktas", "dataset": "digits", "teacher": teacher}


def test_a_registration_is_a_job_that_echoes_its_source(api: TestClient, folder: Path, owner: str) -> None:
    save_file(mae_full().state, folder / "mae.safetensors")
    source = {"path": f"{owner}/../{owner}/mae.safetensors", "num_heads": HEADS}
    response = api.post("/teachers", json={"name": "MAE", "source": source})
    assert response.status_code == 202, response.text
    job = response.json()
    assert response.headers["Location"] == f"/jobs/{job['id']}"
    assert (job["kind"], job["status"], job["name"]) == ("teacher_import", "queued", "teacher MAE")
    assert job["spec"]["source"]["path"] == f"{owner}/mae.safetensors"
    assert api.post("/teachers", json=job["spec"]).status_code == 202  # what a job shows can be repeated
    assert api.get("/teachers").json()["data"] == []


@pytest.mark.parametrize("file", ["x" * 250 + ".pth", "two\nlines.pth", " \t.pth", "\x7f.pth"], ids=["long", *"abc"])
def test_a_file_of_any_name_is_registered_by_a_name_that_can_be_shown(
    api: TestClient, folder: Path, owner: str, file: str
) -> None:
    (folder / file).write_bytes(b"x")
    response = api.post("/teachers", json={"source": {"path": f"{owner}/{file}"}})
    assert response.status_code == 202, response.text
    assert response.json()["spec"]["name"].isprintable()


def test_a_timm_name_is_queued_unseen(api: TestClient) -> None:
    job = api.post("/teachers", json={"source": {"timm": "vit_base_patch16_224.mae"}}).json()
    assert (job["kind"], job["spec"]["name"]) == ("teacher_import", "vit_base_patch16_224.mae")


def test_every_key_at_fault_of_a_safetensors_file_is_in_the_answer(api: TestClient, folder: Path, owner: str) -> None:
    state = plain().state | {"rope.freqs": torch.ones(3), "blocks.0.norm1.bias": torch.ones(5)}
    del state["norm.bias"]
    save_file(state, folder / "odd.safetensors")
    source = {"path": f"{owner}/odd.safetensors", "num_heads": HEADS}
    response = api.post("/teachers", json={"source": source}, headers={"Idempotency-Key": "k"})
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "teacher_invalid")
    keys = problem["keys"]
    assert (keys["missing"], keys["unexpected"]) == (["norm.bias"], ["rope.freqs"])
    assert keys["misshapen"] == [{"name": "blocks.0.norm1.bias", "found": [5], "expected": [32]}]


@pytest.mark.parametrize(
    ("name", "source", "code"),
    [
        ("text.safetensors", {}, "unreadable"),
        ("weights.npz", {}, "unsupported_format"),
        ("folder", {}, "not_a_file"),
        ("nothing.pth", {}, "path_not_found"),
        ("../../../etc/passwd", {}, "path_outside_root"),
        ("unusual.safetensors", {}, "heads_unknown"),
        ("unusual.safetensors", {"num_heads": 5}, "heads_unknown"),
    ],
)
def test_a_file_that_is_no_teacher_is_refused_at_once(
    api: TestClient, session: Session, folder: Path, owner: str, name: str, source: dict[str, Any], code: str
) -> None:
    (folder / "text.safetensors").write_text("no weights")
    (folder / "weights.npz").write_bytes(b"")
    (folder / "folder").mkdir()
    save_file(plain().state, folder / "unusual.safetensors")
    response = api.post("/teachers", json={"source": {"path": f"{owner}/{name}", **source}})
    assert response.status_code == 422
    assert [item["code"] for item in response.json()["errors"]] == [code]
    session.rollback()
    assert session.scalar(select(func.count()).select_from(Job).where(Job.owner == owner)) == 0


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"timm": "a", "path": "b"},
        {"timm": "hf-hub:somebody/else"},
        {"timm": "local-dir:/etc"},
        {"timm": "vit_base_patch16_224", "num_heads": 12},
        {"path": "x", "mean": [0.5]},
        {"path": "x", "mean": [0.5], "std": [0.0]},
        {"path": "x", "activation": "relu"},
    ],
    ids=str,
)
def test_a_source_that_says_too_little_or_too_much_is_refused(api: TestClient, source: dict[str, Any]) -> None:
    response = api.post("/teachers", json={"source": source})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    assert all(item["pointer"].startswith("/source") for item in response.json()["errors"])


def test_a_search_names_a_teacher_by_its_id(api: TestClient, session: Session, owner: str) -> None:
    teacher = add_teacher(session, owner)
    job = api.post("/search", json=search(id=teacher)).json()
    assert job["spec"]["teacher"] == {"pretrain": None, "id": teacher, "timm": None}
    assert api.post("/search/validate", json=job["spec"]).json()["spec"] == job["spec"]
    short = api.post("/search", json={**search(), "teacher": teacher}).json()
    assert short["spec"]["teacher"] == job["spec"]["teacher"]


def test_grids_and_licence_of_a_teacher_are_told_before_the_search_starts(
    api: TestClient, session: Session, owner: str
) -> None:
    licence = {"name": "CC-BY-NC-4.0", "commercial_use": False, "note": "not for commercial use"}
    teacher = add_teacher(session, owner, licence=licence)
    body = search(id=teacher) | {"space": {"preset": "micro", "img_size": 8}}
    warnings = {warning["code"]: warning["detail"] for warning in api.post("/search", json=body).json()["warnings"]}
    assert "CC-BY-NC-4.0" in warnings["teacher_licence"]
    assert "4x4 patches of 2" in warnings["teacher_resampled"]
    assert "from 8 to 16 pixels" in warnings["teacher_resampled"]


def test_a_teacher_that_does_not_exist_is_refused_with_those_that_do(
    api: TestClient, stranger: TestClient, session: Session, owner: str
) -> None:
    mine = add_teacher(session, owner)
    for unknown in ("tch_1", "ds_" + "0" * 32, format_id(IdKind.TEACHER, UUID(int=1))):
        response = api.post("/search", json=search(id=unknown))
        assert response.status_code == 422
        [item] = response.json()["errors"]
        assert (item["pointer"], item["code"], item["allowed"]) == ("/teacher/id", "unknown_teacher", [mine])
    assert stranger.post("/search", json=search(id=mine)).json()["errors"][0]["allowed"] == []


def test_a_supernet_is_taken_over_when_its_teacher_is_gone(api: TestClient, session: Session, owner: str) -> None:
    teacher = add_teacher(session, owner)
    asked = api.post("/search/validate", json=search(id=teacher)).json()
    row = Supernet(
        owner=owner,
        job_id=add_job(session, owner),
        method="masktas",
        space=asked["space"],
        sha256="cd" * 32,
        info={
            "dataset": BUILTINS["digits"].digest,
            "spec": {part: asked["spec"][part] for part in ("dataset", "teacher", "supernet")},
            "files": {},
            "outputs": {"teacher": {"architecture": understood(plain().state).layout.arch.to_json()}},
        },
    )
    session.add(row)
    session.execute(delete(Teacher).where(Teacher.owner == owner))
    session.commit()
    body = {"method": "masktas", "dataset": "digits", "warm_start": format_id(IdKind.SUPERNET, row.id)}
    first = api.post("/search", json=body).json()
    assert first["spec"]["teacher"]["id"] == teacher
    assert api.post("/search", json=first["spec"]).json()["spec"] == first["spec"]  # what a job shows can be repeated


def test_a_teacher_comes_from_one_source(api: TestClient) -> None:
    response = api.post("/search", json=search(id="tch_1", timm="vit_base_patch16_224.mae"))
    assert response.status_code == 422
    [item] = response.json()["errors"]
    assert item["pointer"] == "/teacher"
    assert "exactly one of pretrain, id and timm" in item["detail"]


def test_a_failed_registration_can_be_tried_again(api: TestClient) -> None:
    job = api.post("/teachers", json={"source": {"timm": "vit_base_patch16_224.mae"}}).json()
    api.post(f"/jobs/{job['id']}/cancel")
    assert api.post(f"/jobs/{job['id']}/retry").json()["status"] == "queued"
