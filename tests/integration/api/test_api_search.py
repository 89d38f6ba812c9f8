"""Searches: what is accepted, and that whatever is refused is refused with a pointer and leaves nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from search.presets import resolve
from service.db.models import Idempotency, Job, Worker
from service.ids import IdKind, format_id
from tests.integration.api.rows import TINY, add_candidate, add_dataset, add_job
from tests.unit.search.latency_tables import table_for


def count(session: Session, model: type[Job] | type[Idempotency], owner: str) -> int:
    return session.scalar(select(func.count()).select_from(model).where(model.owner == owner)) or 0


def changed(pointer: str, value: Any) -> dict[str, Any]:
    """The smallest body with one more value."""
    body: dict[str, Any] = {"method": "masktas", "dataset": {"id": "digits"}}
    *path, last = pointer.removeprefix("/").split("/")
    place = body
    for name in path:
        place = place.setdefault(name, {})
    place[last] = value
    return body


def test_a_search_is_queued_with_every_default_filled(api: TestClient) -> None:
    response = api.post("/search", json=TINY)
    assert response.status_code == 202, response.text
    job = response.json()
    assert response.headers["Location"] == f"/jobs/{job['id']}"
    assert (job["status"], job["done"], job["attempt"]) == ("queued", False, 0)
    assert job["queue"]["reason"] == "no_worker"
    spec = job["spec"]
    assert spec["space"]["preset"] == "micro"
    assert spec["search"]["population"] == 50
    assert None not in (spec["name"], spec["supernet"]["epochs"], spec["teacher"]["pretrain"]["architecture"])
    assert api.get(response.headers["Location"]).json() == job


def test_the_effective_spec_is_itself_a_valid_body(api: TestClient) -> None:
    first = api.post("/search", json=TINY).json()
    again = api.post("/search", json=first["spec"])
    assert again.status_code == 202, again.text
    assert again.json()["spec"] == first["spec"]


def test_a_search_starts_from_the_best_of_an_earlier_one(api: TestClient, session: Session, owner: str) -> None:
    earlier = add_job(session, owner, spec={"method": "masktas", "dataset": {"id": "digits"}})
    for n, (width, score) in enumerate([(48, 0.1), (64, 0.3), (96, 0.2)]):
        add_candidate(session, earlier, n, genotype=[3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, float(width)], score=score)
    seeds = {"job": format_id(IdKind.JOB, earlier)}
    response = api.post("/search", json={**TINY, "search": {"population_from": seeds}})
    assert response.status_code == 202, response.text
    filled = response.json()["spec"]["search"]["population_from"]
    assert [network["embed_dim"] for network in filled["architectures"]] == [64, 96, 48]


def test_a_search_that_nobody_knows_cannot_be_started_from(api: TestClient, session: Session, owner: str) -> None:
    slimmable = add_job(session, owner, spec={"method": "scala", "dataset": {"id": "digits"}})
    foreign = add_job(session, "somebody else", spec={"method": "masktas", "dataset": {"id": "digits"}})
    mine = add_job(session, owner, spec={"method": "masktas", "dataset": {"id": "digits"}})
    for unknown in ("job_nobody", format_id(IdKind.JOB, slimmable), format_id(IdKind.JOB, foreign)):
        response = api.post("/search", json={**TINY, "search": {"population_from": unknown}})
        assert response.status_code == 422
        (error,) = response.json()["errors"]
        assert (error["pointer"], error["code"]) == ("/search/population_from/job", "unknown_job")
        assert error["allowed"] == [format_id(IdKind.JOB, mine)]


def test_name_seed_priority_and_metadata_are_kept(api: TestClient) -> None:
    body = {**TINY, "name": "mine", "seed": 7, "priority": 5, "metadata": {"team": "line-3", "π": [1, 2.5, None]}}
    job = api.post("/search", json=body).json()
    assert (job["name"], job["seed"], job["priority"], job["metadata"]) == ("mine", 7, 5, body["metadata"])


def test_a_limit_without_effect_becomes_a_warning(api: TestClient) -> None:
    job = api.post("/search", json=changed("/constraints", [{"metric": "params_m", "max": 1000}])).json()
    assert [(w["code"], w["pointer"]) for w in job["warnings"]] == [("not_binding", "/constraints/0/max")]


@pytest.mark.parametrize(
    ("pointer", "value", "code", "allowed"),
    [
        ("/serch", {}, "unknown_field", "search"),
        ("/search/populaton", 10, "unknown_field", "population"),
        ("/constraints/0/metric", "flops", "not_allowed", "params_m"),
        ("/objectives/0/metric", "beauty", "not_allowed", "score"),
        ("/search/population", -5, "out_of_range", 2),
        ("/search/population", 10**12, "out_of_range", 10_000),
        ("/search/population", 2.5, "wrong_type", "integer"),
        ("/search/population", "fifty", "wrong_type", "integer"),
        ("/search/population", True, "wrong_type", "integer"),
        ("/search/mutation_share", -0.1, "out_of_range", 0),
        ("/supernet/mask_ratio", 1.5, "out_of_range", 0.95),
        ("/supernet/lr", 0, "out_of_range", 0),
        ("/search/evaluation/temperature", 1e-300, "out_of_range", 0.001),
        ("/constraints/0/max", 1e308, "out_of_range", 1e12),
        ("/constraints/0/min", 1e13, "out_of_range", 1e12),
        ("/retrain/epochs", 0, "out_of_range", 1),
        ("/budget/max_wall_seconds", -1, "out_of_range", 1),
        ("/seed", -1, "out_of_range", 0),
        ("/seed", 2**53, "out_of_range", 2**53 - 1),
        ("/space/img_size", 7, "out_of_range", 8),
        ("/space/img_size", 519, "out_of_range", 518),
        ("/space/overrides/patch_size", 1, "out_of_range", 2),
        ("/space/patch_size", 33, "out_of_range", 32),
        ("/space/pool", "max", "not_allowed", "token"),
        ("/space/widths", [1], "unknown_field", "embed_dim"),
        ("/name", "", "wrong_length", 1),
    ],
)
def test_a_bad_value_is_refused_with_pointer_and_what_is_allowed(
    api: TestClient, session: Session, owner: str, pointer: str, value: Any, code: str, allowed: Any
) -> None:
    if pointer.startswith(("/constraints/0", "/objectives/0")):
        kind, _, field = pointer.removeprefix("/").split("/")
        body = changed(f"/{kind}", [{"metric": "params_m", "max": 1, "goal": "min", field: value}])
    else:
        body = changed(pointer, value)
    response = api.post("/search", json=body, headers={"Idempotency-Key": "k"})
    assert response.status_code == 422
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "validation_failed"
    (item,) = [item for item in problem["errors"] if item["pointer"] == pointer]
    assert item["code"] == code
    offered = item["allowed"]
    assert allowed in (offered if isinstance(offered, list) else offered.values())
    assert pointer in problem["detail"]
    assert (count(session, Job, owner), count(session, Idempotency, owner)) == (0, 0)


@pytest.mark.parametrize(("betas", "at"), [([-0.1, 0.9], 0), ([0.9, 1], 1)])
def test_decay_rates_that_adam_cannot_use_are_refused(api: TestClient, betas: list[float], at: int) -> None:
    response = api.post("/search/validate", json=changed("/supernet/betas", betas))
    assert response.status_code == 422
    (item,) = response.json()["errors"]
    assert (item["pointer"], item["code"]) == (f"/supernet/betas/{at}", "out_of_range")
    assert item["allowed"] == {"type": "number", "minimum": 0, "exclusiveMaximum": 1}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/constraints", [{"metric": "gmacs", "min": 0.001}, {"metric": "gmacs", "max": 1}]),
        ("/objectives", [{"metric": "score", "goal": "max"}] * 2),
        ("/metadata", {"note": "x" * 20_000}),
        ("/supernet", {"reconstruction": False, "beta": 0}),
    ],
)
def test_a_field_that_contradicts_itself_is_named(api: TestClient, pointer: str, value: Any) -> None:
    response = api.post("/search/validate", json=changed(pointer, value))
    assert response.status_code == 422
    assert [(item["pointer"], item["code"]) for item in response.json()["errors"]] == [(pointer, "invalid")]


@pytest.mark.parametrize(
    ("body", "missing"), [({}, "/method"), ({"method": "masktas"}, "/dataset"), ({"method": "scala"}, "/dataset")]
)
def test_a_missing_field_is_named(api: TestClient, body: dict[str, Any], missing: str) -> None:
    problem = api.post("/search", json=body).json()
    assert [(e["pointer"], e["code"]) for e in problem["errors"]] == [(missing, "missing")]


def test_a_method_that_there_is_not_is_refused_with_those_that_there_are(api: TestClient) -> None:
    for unknown in ("darts", "x" * 200, 7, None, ["scala"], {"scala": {}}):
        problem = api.post("/search", json={"method": unknown, "dataset": "digits"}).json()
        (item,) = problem["errors"]
        assert (item["pointer"], item["code"]) == ("/method", "not_allowed"), unknown
        assert item["allowed"] == ["masktas", "scala", "separate", "usnet"]


@pytest.mark.parametrize(
    ("pointer", "value", "code", "allowed"),
    [
        ("/space", {}, "unknown_field", "network"),
        ("/training/epoch", 3, "unknown_field", "epochs"),
        ("/training/noise_calibration/after", 3, "unknown_field", "after_epochs"),
        ("/training/noise_calibration/after_epochs", -1, "out_of_range", 0),
        ("/training/stable_sampling", "sometimes", "not_allowed", "paper"),
        ("/teacher/train/mixup", -1, "out_of_range", 0),
        ("/widths/smallest", 1, "out_of_range", 1),
        ("/widths/step", "some", "not_allowed", "every"),
        ("/widths/step", 0, "out_of_range", {"type": "number", "exclusiveMinimum": 0.0, "exclusiveMaximum": 1.0}),
        ("/widths/max_dip", 1e308, "out_of_range", 100),
        ("/network/embed_dim", 10**30, "out_of_range", 8192),
        ("/network/in_chans", 2, "not_allowed", 3),
        ("/export/top_k", 0, "out_of_range", 1),
    ],
)
def test_a_bad_value_of_a_slimmable_network_is_refused_at_its_field(
    api: TestClient, pointer: str, value: Any, code: str, allowed: Any
) -> None:
    response = api.post("/search/validate", json={**changed(pointer, value), "method": "scala"})
    assert response.status_code == 422
    # A value with several forms has a fault for each of them.
    item = next(item for item in response.json()["errors"] if (item["pointer"], item["code"]) == (pointer, code))
    assert allowed in (item["allowed"] if isinstance(item["allowed"], list) else item["allowed"].values())


@pytest.mark.parametrize("value", ["often", 1.5])
def test_every_fault_of_a_value_with_several_forms_is_told_at_the_value(api: TestClient, value: Any) -> None:
    for method, pointer in (("scala", "/training/noise_calibration"), ("masktas", "/search/evaluation/companions")):
        body = {**changed(pointer, value), "method": method}
        items = api.post("/search/validate", json=body).json()["errors"]
        assert {item["pointer"] for item in items} == {pointer}


def test_a_slimmable_network_is_shown_with_its_widths_before_it_is_trained(api: TestClient) -> None:
    limits = [{"metric": "params_m", "max": 0.1}]
    body = {"method": "scala", "dataset": "digits", "widths": {"step": 0.25}, "constraints": limits}
    shown = api.post("/search/validate", json=body).json()
    widths = shown["widths"]
    assert [width["width"] for width in widths] == list(range(24, 97, 3))
    assert [width["ratio"] for width in widths if width["trained"]] == [0.25, 0.5, 0.75, 1.0]
    assert [width["feasible"] for width in widths] == [width["params_m"] <= 0.1 for width in widths]
    assert shown["feasible"] == {"architectures": sum(w["feasible"] for w in widths), "space_size": 25}
    assert shown["reachable"][0] == {"metric": "params_m", "min": widths[0]["params_m"], "max": widths[-1]["params_m"]}


@pytest.mark.parametrize("dataset", ["cifar", "ds_0", "ds_" + "0" * 32, "job_" + "0" * 32])
def test_an_unknown_dataset_is_refused_with_those_that_exist(
    api: TestClient, session: Session, owner: str, dataset: str
) -> None:
    mine = format_id(IdKind.DATASET, add_dataset(session, owner))
    response = api.post("/search", json={"method": "masktas", "dataset": dataset})
    assert response.status_code == 422
    (item,) = response.json()["errors"]
    assert (item["pointer"], item["code"], item["allowed"]) == ("/dataset/id", "unknown_dataset", ["digits", mine])
    assert count(session, Job, owner) == 0


@pytest.mark.parametrize(("status", "code"), [("validating", "dataset_not_ready"), ("rejected", "dataset_invalid")])
def test_a_dataset_that_is_not_ready_is_refused(
    api: TestClient, session: Session, owner: str, status: str, code: str
) -> None:
    dataset = format_id(IdKind.DATASET, add_dataset(session, owner, status=status))
    response = api.post("/search", json={"method": "masktas", "dataset": dataset})
    assert response.status_code == 422
    assert [(e["pointer"], e["code"]) for e in response.json()["errors"]] == [("/dataset/id", code)]


def test_a_ready_import_can_be_searched(api: TestClient, session: Session, owner: str) -> None:
    dataset = format_id(IdKind.DATASET, add_dataset(session, owner))
    job = api.post("/search", json={"method": "masktas", "dataset": dataset}).json()
    assert job["spec"]["dataset"]["id"] == dataset
    assert (job["spec"]["space"]["in_chans"], job["spec"]["space"]["img_size"]) == (3, 32)


def test_somebody_elses_dataset_does_not_exist(api: TestClient, session: Session, owner: str) -> None:
    dataset = format_id(IdKind.DATASET, add_dataset(session, "eve"))
    (item,) = api.post("/search", json={"method": "masktas", "dataset": dataset}).json()["errors"]
    assert (item["code"], item["allowed"]) == ("unknown_dataset", ["digits"])


def test_an_unknown_space_is_refused_with_those_that_exist(api: TestClient) -> None:
    (item,) = api.post("/search", json={**TINY, "space": "tiny"}).json()["errors"]
    assert item["pointer"] == "/space/preset"
    assert "masktas-tiny" in item["allowed"]


@pytest.mark.parametrize("limit", [{"max": 0.001}, {"min": 1000.0}])
@pytest.mark.parametrize("path", ["/search", "/search/validate"])
def test_a_limit_that_no_network_meets_is_refused_with_the_reachable_range(
    api: TestClient, session: Session, owner: str, path: str, limit: dict[str, float]
) -> None:
    response = api.post(path, json=changed("/constraints", [{"metric": "params_m", **limit}]))
    assert response.status_code == 422
    problem = response.json()
    assert problem["code"] == "constraint_unsatisfiable"
    (item,) = problem["errors"]
    assert item["pointer"] == f"/constraints/0/{next(iter(limit))}"
    (reach,) = [r for r in problem["reachable"] if r["metric"] == "params_m"]
    assert 0.001 < reach["min"] < reach["max"] < 1000
    assert f"{reach['min']:g}"[:5] in problem["detail"]
    assert count(session, Job, owner) == 0


def test_the_reachable_range_is_reachable_to_the_unit(api: TestClient) -> None:
    preview = api.post("/search/validate", json=TINY).json()
    (reach,) = [r for r in preview["reachable"] if r["metric"] == "params_m"]
    at_the_edge = changed("/constraints", [{"metric": "params_m", "max": reach["min"]}])
    below = changed("/constraints", [{"metric": "params_m", "max": reach["min"] - 1e-6}])
    assert api.post("/search/validate", json=at_the_edge).json()["feasible"]["architectures"] >= 1
    assert api.post("/search/validate", json=below).status_code == 422


def test_a_limit_on_latency_is_decided_by_the_table_of_the_body(api: TestClient) -> None:
    space = resolve("micro", img_size=8, in_chans=1)
    table = table_for(space, 10)
    limit = {"metric": "latency_ms", "max": 0.05, "table": table.to_json()}
    preview = api.post("/search/validate", json=changed("/constraints", [limit])).json()
    (reach,) = [r for r in preview["reachable"] if r["metric"] == "latency_ms"]
    assert reach["min"] < 0.05 < reach["max"]
    assert 0 < preview["feasible"]["architectures"] < preview["feasible"]["space_size"]
    (shown,) = preview["spec"]["constraints"]
    assert (shown["table"], shown["table_digest"]) == (table.to_json(), table.digest())
    assert (shown["batch_size"], shown["percentile"], shown["runtime"]) == (1, 50, "torch")
    # The filled spec is a body itself.
    assert api.post("/search/validate", json=preview["spec"]).json()["spec"] == preview["spec"]
    below = {**limit, "max": reach["min"] * 0.999}
    problem = api.post("/search/validate", json=changed("/constraints", [below])).json()
    assert (problem["code"], problem["errors"][0]["pointer"]) == ("constraint_unsatisfiable", "/constraints/0/max")
    assert reach in problem["reachable"]


def test_a_limit_on_latency_names_a_device_whose_table_the_job_keeps(api: TestClient) -> None:
    table = table_for(resolve("micro", img_size=8, in_chans=1), 10)
    device = api.post("/devices", json={"name": "board", "table": table.to_json()}).json()["id"]
    limit = {"metric": "latency_ms", "max": 0.05, "device": device}
    job = api.post("/search", json=changed("/constraints", [limit])).json()
    (shown,) = job["spec"]["constraints"]
    assert (shown["device"], shown["table"], shown["table_digest"]) == (device, table.to_json(), table.digest())
    # The job can be repeated when the device is gone; a new one cannot name it.
    assert api.delete(f"/devices/{device}").status_code == 204
    assert api.post("/search/validate", json=job["spec"]).json()["spec"]["constraints"] == [shown]
    (item,) = api.post("/search/validate", json=changed("/constraints", [limit])).json()["errors"]
    assert (item["pointer"], item["code"]) == ("/constraints/0/device", "unknown_device")


def test_validate_previews_and_creates_nothing(api: TestClient, session: Session, owner: str) -> None:
    preview = api.post("/search/validate", json=TINY).json()
    assert {r["metric"] for r in preview["reachable"]} == {"params_m", "gmacs", "weight_mb", "peak_mem_mb"}
    assert preview["feasible"]["architectures"] == preview["feasible"]["space_size"] > 1000
    assert preview["space"]["name"] == "micro"
    assert count(session, Job, owner) == 0
    assert api.post("/search", json=TINY).json()["spec"] == preview["spec"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"method: masktas",
        b'{"seed": NaN}',
        b'{"seed": Infinity}',
        b'{"supernet": {"lr": 1e999}}',
        b'{"seed": 1, "seed": 2}',
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 80 + b"1" + b"}" * 81,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_malformed(api: TestClient, content: bytes) -> None:
    response = api.post("/search", content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (400, "malformed")


@pytest.mark.parametrize("body", [[], "digits", 3, None])
def test_a_document_of_the_wrong_kind_is_refused(api: TestClient, body: Any) -> None:
    response = api.post("/search", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")


def test_only_json_is_read(api: TestClient) -> None:
    response = api.post("/search", content=b"{}", headers={"Content-Type": "application/yaml"})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    assert "application/yaml" in response.json()["detail"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_above_the_limit_is_not_read(api: TestClient, announced: bool) -> None:
    text = b'{"metadata": "' + b"x" * (1 << 20) + b'"}'
    content: Any = text if announced else iter([text[: 1 << 19], text[1 << 19 :]])
    response = api.post("/search", content=content, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
    assert response.headers["Content-Type"] == "application/problem+json"


def test_metadata_has_a_limit_of_its_own(api: TestClient) -> None:
    response = api.post("/search", json={**TINY, "metadata": {"x": "y" * 20_000}})
    assert response.status_code == 422
    assert "metadata" in response.json()["detail"]


@pytest.mark.parametrize("method", ["masktas", "scala"])
def test_an_estimate_rests_on_what_workers_have_measured(
    method: str, alone: TestClient, fresh_session: Session
) -> None:
    body = {**TINY, "method": method}
    assert alone.post("/search/validate", json=body).json()["estimate"] is None
    speeds = {"macs_per_s": 1e10, "pass_s": 1e-3, "update_s": 1e-9, "start_s": 5.0, "base_mb": 700.0, "error": 0.1}
    info = {"calibration": {"version": 1, "device": "cpu", "threads": 1, **speeds}}
    for name, known in (("measured", info), ("fresh", {})):
        fresh_session.add(Worker(name=name, queues=["cpu"], slots=1, busy=0, info=known))
    fresh_session.commit()
    estimate = alone.post("/search/validate", json=body).json()["estimate"]
    assert estimate["workers"] == 1
    assert estimate["wall_seconds"]["low"] < estimate["wall_seconds"]["likely"] < estimate["wall_seconds"]["high"]
    assert estimate["device_hours"]["likely"] == pytest.approx(estimate["wall_seconds"]["likely"] / 3600)
    assert estimate["memory_mb"]["likely"] > 700
    assert sum(estimate["stages"].values()) < estimate["wall_seconds"]["likely"]
