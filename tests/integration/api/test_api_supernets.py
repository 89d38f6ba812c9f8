"""Slimmable supernets: their widths, and the jobs that take one out, bring one in, or carry one to other images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from models.slimmable import Slimmable
from search.cost import cost
from service.datasets.builtin import BUILTINS
from service.db.models import Job, Supernet
from service.ids import IdKind, format_id, parse_id
from service.jobs.resolve import resolve_slimmable
from service.jobs.spec import SlimmableSpec, SupernetImportSpec
from tests.integration.api.rows import add_job

DIGITS = BUILTINS["digits"]
RESOLVED = resolve_slimmable(
    SlimmableSpec.model_validate({"method": "scala", "dataset": "digits", "widths": {"step": 0.25}}), DIGITS
)
NET = RESOLVED.net
SPEC = RESOLVED.spec.model_dump(mode="json")


def width(net: Slimmable, head_dim: int, accuracy: float | None, *, offered: bool = True) -> dict[str, Any]:
    return {
        "head_dim": head_dim,
        "width": net.embed_dim(head_dim),
        "ratio": net.ratio(head_dim),
        "accuracy": accuracy,
        "interpolated": not net.is_trained(head_dim),
        "dip": None,
        "offered": offered,
    }


WIDTHS = [
    width(NET, 8, 0.5),
    width(NET, 12, 0.4, offered=False),
    width(NET, 16, 0.7),
    width(NET, 20, 0.9),
    width(NET, 24, 0.8),
    width(NET, 32, 0.9),
]
OFFERED = [24, 48, 60, 72, 96]


def add_supernet(session: Session, owner: str, method: str = "scala", **changes: Any) -> str:
    info = {
        "dataset": DIGITS.digest,
        "classes": list(DIGITS.classes),
        "widths": WIDTHS,
        "spec": SPEC,
        "trained_for": {},
        "files": {},
        **changes,
    }
    space = NET.to_json() if method != "masktas" else {"name": "micro"}
    row = Supernet(owner=owner, job_id=add_job(session, owner), method=method, space=space, sha256="ab" * 32, info=info)
    session.add(row)
    session.commit()
    return format_id(IdKind.SUPERNET, row.id)


@pytest.fixture
def supernet(session: Session, owner: str) -> str:
    return add_supernet(session, owner)


def count_jobs(session: Session, owner: str) -> int:
    return session.scalar(select(func.count()).select_from(Job).where(Job.owner == owner)) or 0


def test_widths_are_shown_with_their_costs(api: TestClient, supernet: str) -> None:
    shown = api.get(f"/supernets/{supernet}").json()
    assert [(w["width"], w["accuracy"], w["offered"]) for w in shown["widths"]] == [
        (w["width"], w["accuracy"], w["offered"]) for w in WIDTHS
    ]
    assert [w["params_m"] for w in shown["widths"]] == [cost(NET.architecture(w["head_dim"])).params_m for w in WIDTHS]
    assert api.get("/supernets").json()["data"] == [shown]


@pytest.mark.parametrize(
    ("asked", "head_dims"),
    [
        ({"width": 60}, [20]),
        ({"ratio": 0.625}, [20]),
        ({"ratio": 1}, [32]),
        ({"max_params_m": 1}, [20, 32, 24, 16, 8]),  # as accurate as the whole network, and cheaper
        ({"max_params_m": 0.26}, [20, 24, 16, 8]),
        ({"max_weight_mb": 1.04}, [20, 24, 16, 8]),  # four bytes a parameter
        ({"max_peak_mem_mb": 1e3, "max_weight_mb": 1.04}, [20, 24, 16, 8]),
        ({"max_latency_ms": 3, "batch_size": 8}, [20, 32, 24, 16, 8]),
        ({"max_gmacs": 0.0045, "max_params_m": 1, "max_latency_ms": 3}, [20, 24, 16, 8]),
    ],
    ids=str,
)
def test_an_extraction_comes_down_to_widths_with_the_best_first(
    api: TestClient, supernet: str, asked: dict[str, Any], head_dims: list[int]
) -> None:
    response = api.post(f"/supernets/{supernet}/extract", json=asked)
    assert response.status_code == 202, response.text
    job = response.json()
    assert (job["kind"], job["spec"]["supernet"]) == ("extract", supernet)
    assert job["spec"]["head_dims"] == head_dims
    assert response.headers["Location"] == f"/jobs/{job['id']}"


@pytest.mark.parametrize(
    ("what", "body"),
    [("extract", {"width": 60}), ("extract", {"max_params_m": 0.26}), ("transfer", {"dataset": "digits", "k": 5})],
    ids=str,
)
def test_what_was_done_with_a_supernet_is_done_once_more(
    api: TestClient, supernet: str, what: str, body: dict[str, Any]
) -> None:
    first = api.post(f"/supernets/{supernet}/{what}", json=body).json()
    again = api.post(f"/jobs/{first['id']}/replay")
    assert again.status_code == 202, again.text
    same = ("kind", "name", "spec", "seed", "parent")
    assert {name: again.json()[name] for name in same} == {name: first[name] for name in same}
    assert again.json()["id"] != first["id"]


def test_of_unmeasured_widths_the_widest_is_the_best(api: TestClient, session: Session, owner: str) -> None:
    imported = add_supernet(session, owner, widths=[width(NET, head_dim, None) for head_dim in (8, 16, 24, 32)])
    job = api.post(f"/supernets/{imported}/extract", json={"max_params_m": 1}).json()
    assert job["spec"]["head_dims"] == [32, 24, 16, 8]


@pytest.mark.parametrize("asked", [{"width": 36}, {"width": 61}, {"width": 27}, {"ratio": 0.3}, {"ratio": 0.375}])
def test_a_width_that_is_unknown_or_not_offered_is_refused_with_those_that_are(
    api: TestClient, session: Session, owner: str, supernet: str, asked: dict[str, Any]
) -> None:
    before = count_jobs(session, owner)
    response = api.post(f"/supernets/{supernet}/extract", json=asked)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "unknown_width")
    (item,) = problem["errors"]
    [field] = asked
    allowed = OFFERED if field == "width" else [offered / 96 for offered in OFFERED]
    assert (item["pointer"], item["allowed"]) == (f"/{field}", allowed)
    assert [offered["width"] for offered in problem["widths"]] == OFFERED
    assert count_jobs(session, owner) == before


def test_limits_that_no_offered_width_meets_are_refused_with_the_reachable_range(
    api: TestClient, supernet: str
) -> None:
    response = api.post(f"/supernets/{supernet}/extract", json={"max_params_m": 1e-6, "max_gmacs": 1})
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "constraint_unsatisfiable")
    smallest = cost(NET.architecture(8)).params_m
    assert [(item["pointer"], item["allowed"]) for item in problem["errors"]] == [("/max_params_m", {"min": smallest})]
    assert problem["reachable"][0]["min"] == smallest


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({}, ""),
        ({"width": 24, "ratio": 0.25}, ""),
        ({"width": 24, "max_gmacs": 1}, ""),
        ({"width": 0}, "/width"),
        ({"ratio": 1.5}, "/ratio"),
        ({"max_gmacs": 0}, "/max_gmacs"),
        ({"max_params_m": 1e300}, "/max_params_m"),
        ({"max_latency_ms": 1, "device": "cuda"}, "/device"),
        ({"max_latency_ms": 1, "batch_size": 0}, "/batch_size"),
        ({"head_dims": [8]}, "/head_dims"),
    ],
    ids=str,
)
def test_an_extraction_that_is_none_is_refused_at_its_field(
    api: TestClient, supernet: str, asked: dict[str, Any], pointer: str
) -> None:
    response = api.post(f"/supernets/{supernet}/extract", json=asked)
    assert response.status_code == 422
    assert pointer in [item["pointer"] for item in response.json()["errors"]]


@pytest.mark.parametrize(("action", "body"), [("extract", {"width": 24}), ("transfer", {"dataset": "digits"})])
def test_supernets_of_spaces_have_no_widths(
    api: TestClient, session: Session, owner: str, action: str, body: dict[str, Any]
) -> None:
    other = add_supernet(session, owner, "masktas")
    assert api.get(f"/supernets/{other}").json()["widths"] == []
    response = api.post(f"/supernets/{other}/{action}", json=body)
    assert response.status_code == 422
    assert [(item["pointer"], item["code"]) for item in response.json()["errors"]] == [("supernet_id", "not_slimmable")]


@pytest.mark.parametrize(("action", "body"), [("extract", {"width": 24}), ("transfer", {"dataset": "digits"})])
def test_supernets_of_others_are_not_found(
    stranger: TestClient, supernet: str, action: str, body: dict[str, Any]
) -> None:
    assert stranger.post(f"/supernets/{supernet}/{action}", json=body).status_code == 404
    assert stranger.post(f"/supernets/nonsense/{action}", json=body).status_code == 404


def test_a_transfer_keeps_dataset_and_neighbours(api: TestClient, supernet: str) -> None:
    job = api.post(f"/supernets/{supernet}/transfer", json={"dataset": "digits", "k": 5}).json()
    assert (job["kind"], job["spec"]["supernet"], job["spec"]["k"]) == ("transfer", supernet, 5)
    assert job["spec"]["dataset"] == {"id": "digits", "val_fraction": 0.1, "holdout_fraction": 0.2, "labels": "auto"}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"dataset": {"id": "digits", "labels": "ignored"}}, "/dataset/labels"),
        ({"dataset": {"id": "digits", "val_fraction": 0.5, "holdout_fraction": 0.3}, "k": 1000}, "/k"),
        ({"dataset": "nosuch"}, "/dataset/id"),
        ({"dataset": "digits", "k": 0}, "/k"),
        ({"k": 5}, "/dataset"),
    ],
    ids=str,
)
def test_a_transfer_that_cannot_work_is_refused_at_its_field(
    api: TestClient, supernet: str, body: dict[str, Any], pointer: str
) -> None:
    response = api.post(f"/supernets/{supernet}/transfer", json=body)
    assert response.status_code == 422
    assert [item["pointer"] for item in response.json()["errors"]] == [pointer]


def test_an_import_keeps_path_and_grid(api: TestClient, import_root: Path) -> None:
    (import_root / "scala.pth").write_bytes(b"x")
    body = {"path": "./scala.pth", "smallest": 0.25, "step": 0.0625, "dataset": "digits"}
    job = api.post("/supernets/import", json=body).json()
    assert (job["kind"], job["spec"]["name"], job["spec"]["path"]) == ("supernet_import", "scala.pth", "scala.pth")
    assert job["spec"]["dataset"]["id"] == "digits"


@pytest.mark.parametrize("file", ["x" * 250 + ".pth", "two\nlines.pth", " \t.pth", "\x7f.pth"], ids=["long", *"abc"])
def test_a_file_of_any_name_is_imported_by_a_name_that_can_be_shown(
    api: TestClient, import_root: Path, file: str
) -> None:
    (import_root / file).write_bytes(b"x")
    response = api.post("/supernets/import", json={"path": file})
    assert response.status_code == 202, response.text
    spec = response.json()["spec"]
    assert spec["path"] == file
    assert SupernetImportSpec.model_validate(spec).name
    assert spec["name"].isprintable()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"path": "../secret.pth"}, "/path"),
        ({"path": "/etc/passwd"}, "/path"),
        ({"path": "no.pth"}, "/path"),
        ({"path": "x" * 4096}, "/path"),
        ({"path": "folder"}, "/path"),
        ({"path": "notes.txt"}, "/path"),
        ({"path": "notes.txt", "step": "every"}, "/step"),
        ({"path": "notes.txt", "name": " "}, "/name"),
        ({"path": "w.pth", "dataset": {"id": "digits", "labels": "ignored"}}, "/dataset/labels"),
        ({}, "/path"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_import_that_cannot_work_is_refused_at_its_field(
    api: TestClient, import_root: Path, body: dict[str, Any], pointer: str
) -> None:
    (import_root / "folder").mkdir(exist_ok=True)
    for name in ("notes.txt", "w.pth"):
        (import_root / name).write_bytes(b"x")
    response = api.post("/supernets/import", json=body)
    assert response.status_code == 422
    assert [item["pointer"] for item in response.json()["errors"]] == [pointer]


def test_a_supernet_is_trained_by_the_same_job_as_a_search(api: TestClient) -> None:
    body = {"method": "usnet", "dataset": "digits", "name": "mine"}
    jobs = [api.post(path, json=body).json() for path in ("/supernets", "/search")]
    assert jobs[0]["kind"] == "search"
    assert jobs[0]["spec"] == jobs[1]["spec"]
    refused = api.post("/supernets", json={"method": "masktas", "dataset": "digits"}).json()
    assert [item["pointer"] for item in refused["errors"]] == ["/method"]


def test_acting_twice_with_one_key_starts_one_job(api: TestClient, session: Session, owner: str, supernet: str) -> None:
    before = count_jobs(session, owner)
    answers = [
        api.post(f"/supernets/{supernet}/extract", json={"width": 24}, headers={"Idempotency-Key": "k"}).json()
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert count_jobs(session, owner) == before + 1


def test_a_trained_network_is_continued_on_another_grid(api: TestClient, supernet: str) -> None:
    body = {"method": "scala", "dataset": "digits", "warm_start": supernet, "widths": {"step": "every"}}
    job = api.post("/search", json=body).json()
    assert job["spec"]["network"] == SPEC["network"]
    assert job["spec"]["warm_start"] == {"supernet": supernet}


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"method": "usnet"}, "/warm_start/supernet", "other_method"),
        ({"method": "masktas"}, "/warm_start/supernet", "other_method"),
        ({"network": {"depth": 5}}, "/network/depth", "fixed_by_weights"),
        ({"slicing": {"qkv": "contiguous"}}, "/slicing/qkv", "fixed_slicing"),
        ({"dataset": {"id": "digits", "val_fraction": 0.2}}, "/dataset/val_fraction", "split_mismatch"),
        ({"init": {"timm": "deit_small_patch16_224"}}, "/warm_start", "two_starts"),
    ],
    ids=str,
)
def test_what_contradicts_a_continued_network_is_refused(
    api: TestClient, supernet: str, changes: dict[str, Any], pointer: str, code: str
) -> None:
    body = {"method": "scala", "dataset": "digits", "warm_start": supernet, **changes}
    response = api.post("/search/validate", json=body)
    assert response.status_code == 422
    assert (pointer, code) in [(item["pointer"], item["code"]) for item in response.json()["errors"]]


def test_ids_of_jobs_lead_back_to_the_supernet(api: TestClient, session: Session, supernet: str) -> None:
    row = session.get_one(Supernet, parse_id(IdKind.SUPERNET, supernet))
    job = api.post(f"/supernets/{supernet}/extract", json={"width": 24}).json()
    assert job["parent"] == format_id(IdKind.JOB, row.job_id)
