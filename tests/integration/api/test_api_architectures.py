"""Architectures: prices, descriptions, spaces, and the winner of a search."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from models.architecture import Architecture
from search.presets import PRESETS, PresetName, resolve
from service.db.models import JobState
from service.ids import IdKind, format_id
from service.store import ArtifactStore
from tests.integration.api.rows import add_artifact, add_candidate, add_job, architecture
from tests.unit.published import GOLDEN, Golden
from tests.unit.search.latency_tables import table_for

SPACES_PAGE = Path(__file__).parents[3] / "docs" / "spaces.md"
DEIT_T: dict[str, Any] = {"embed_dim": 192, "depth": 12, "num_heads": [3] * 12, "mlp_ratio": [4] * 12}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_published_networks_cost_what_was_published_to_the_unit(api: TestClient, golden: Golden) -> None:
    found = api.post("/architectures/cost", json=golden.arch.to_json()).json()
    assert (found["params"], found["macs"]) == (golden.params, golden.macs)
    assert found["params_m"] == pytest.approx(golden.params / 1e6, rel=1e-12)
    assert found["gmacs"] == pytest.approx(golden.macs / 1e9, rel=1e-12)
    assert found["weight_bytes"] == 4 * golden.params


@pytest.mark.parametrize(
    ("embed_dim", "heads", "params_m", "gmacs"),
    [(192, 3, 5.717, 1.254), (384, 6, 22.051, 4.599), (768, 12, 86.568, 17.564)],
)
def test_plain_transformers_cost_what_is_known(
    api: TestClient, embed_dim: int, heads: int, params_m: float, gmacs: float
) -> None:
    body = {**DEIT_T, "embed_dim": embed_dim, "num_heads": [heads] * 12}
    found = api.post("/architectures/cost", json=body).json()
    assert (found["params_m"], found["gmacs"]) == (pytest.approx(params_m, rel=1e-3), pytest.approx(gmacs, rel=1e-2))
    twice = api.post("/architectures/cost", json={**body, "img_size": 448}).json()
    assert twice["gmacs"] > 4 * found["gmacs"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"num_heads": [0] + [3] * 11}, "/num_heads/0"),
        ({"num_heads": [3] * 13}, "/num_heads"),
        ({"num_heads": 3}, "/num_heads"),
        ({"num_heads": [3] * 11 + [2.5]}, "/num_heads/11"),
        ({"num_heads": [3] * 11 + [True]}, "/num_heads/11"),
        ({"mlp_ratio": [4] * 11 + [-4]}, "/mlp_ratio/11"),
        ({"mlp_ratio": [4] * 11 + ["4"]}, "/mlp_ratio/11"),
        ({"embed_dim": "192"}, "/embed_dim"),
        ({"embed_dim": -192}, "/embed_dim"),
        ({"embed_dim": 10**9}, "/embed_dim"),
        ({"embed_dim": None}, "/embed_dim"),
        ({"depth": 10**9}, "/depth"),
        ({"depth": [12]}, "/depth"),
        ({"img_size": 225}, "/img_size"),
        ({"in_chans": 4}, "/in_chans"),
        ({"pool": "max"}, "/pool"),
        ({"pool": ["avg"]}, "/pool"),
        ({"rel_pos": 1}, "/rel_pos"),
        ({"norm_eps": 0}, "/norm_eps"),
        ({"schema_version": 99}, "/schema_version"),
        ({"layers": 12}, "/layers"),
        ({"dynamic": True}, "/dynamic"),
    ],
)
def test_an_impossible_architecture_is_refused_with_pointer_and_what_is_allowed(
    api: TestClient, change: dict[str, Any], pointer: str
) -> None:
    response = api.post("/architectures/cost", json={**DEIT_T, **change})
    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
    (item,) = [item for item in response.json()["errors"] if item["pointer"] == pointer]
    assert item["allowed"]


def test_a_device_predicts_the_latency_and_names_what_its_table_lacks(api: TestClient) -> None:
    space = resolve("micro", img_size=8, in_chans=1)
    table = table_for(space, 10)
    device = api.post("/devices", json={"name": "board", "table": table.to_json()}).json()["id"]
    arch = space.largest(10)
    priced = api.post("/architectures/cost", params={"device": device}, json=arch.to_json()).json()
    assert priced["latency_ms"] == table.predict_ns(arch) / 1e6
    assert api.post("/architectures/cost", json=arch.to_json()).json() == {**priced, "latency_ms": None}
    wider = {**arch.to_json(), "embed_dim": 80}
    (item,) = api.post("/architectures/cost", params={"device": device}, json=wider).json()["errors"]
    assert (item["pointer"], item["allowed"]) == ("/embed_dim", "one of 48, 64, 96")
    (item,) = api.post("/architectures/cost", params={"device": "dev_x"}, json=arch.to_json()).json()["errors"]
    assert (item["pointer"], item["code"]) == ("device", "unknown_device")


def test_missing_genes_are_all_named(api: TestClient) -> None:
    errors = api.post("/architectures/cost", json={"depth": 12}).json()["errors"]
    assert [item["pointer"] for item in errors] == ["/embed_dim", "/num_heads", "/mlp_ratio"]


def test_a_whole_exported_document_can_be_priced(api: TestClient) -> None:
    document = {**DEIT_T, "classes": ["a"], "files": [], "costs": {"params_m": 1.0}, "provenance": {"job": "x"}}
    assert api.post("/architectures/cost", json=document).json() == api.post("/architectures/cost", json=DEIT_T).json()


def test_spaces_are_listed_with_their_costs(api: TestClient) -> None:
    page = api.get("/spaces", params={"limit": 1}).json()
    rest = api.get("/spaces", params={"after": page["next"]}).json()
    found = page["data"] + rest["data"]
    assert [space["name"] for space in found] == [name.value for name in PRESETS]
    for space in found:
        costs = space["costs"]
        assert costs["min"]["params"] < costs["centre"]["params"] < costs["max"]["params"]
        assert costs["min"]["macs"] < costs["centre"]["macs"] < costs["max"]["macs"]
        assert space["size"] > 1000


@pytest.mark.parametrize("golden", [g for g in GOLDEN if g.name in tuple(PresetName)], ids=lambda golden: golden.name)
def test_a_space_shows_what_papers_found_in_it(api: TestClient, golden: Golden) -> None:
    space = api.get(f"/spaces/{golden.name}", params={"num_classes": 1000}).json()
    (known,) = space["published"]
    assert known["cost"]["params"] == golden.params
    assert space["costs"]["min"]["params"] <= golden.params <= space["costs"]["max"]["params"]
    schema = space["architecture_schema"]["properties"]
    assert golden.arch.embed_dim in schema["embed_dim"]["enum"]
    assert set(known["architecture"]["num_heads"]) <= set(schema["num_heads"]["items"]["enum"])


def test_a_space_can_be_asked_for_other_images(api: TestClient) -> None:
    grey = api.get("/spaces/micro", params={"img_size": 8, "in_chans": 1, "num_classes": 10}).json()
    assert (grey["img_size"], grey["in_chans"], grey["num_classes"]) == (8, 1, 10)
    assert grey["space"]["patch_size"] == 2
    preview = api.post("/search/validate", json={"method": "masktas", "dataset": "digits"}).json()
    (reach,) = [r for r in preview["reachable"] if r["metric"] == "params_m"]
    assert (reach["min"], reach["max"]) == (grey["costs"]["min"]["params_m"], grey["costs"]["max"]["params_m"])


@pytest.mark.parametrize("name", list(PresetName))
def test_the_space_that_is_shown_is_what_a_search_takes(api: TestClient, name: PresetName) -> None:
    shown = api.get(f"/spaces/{name}").json()["space"]
    preview = api.post("/search/validate", json={"method": "masktas", "dataset": "digits", "space": shown})
    assert preview.status_code == 200, preview.text
    assert preview.json()["space"] == shown
    assert preview.json()["spec"]["space"] == shown


def test_a_space_of_ones_own_is_described_without_a_search(api: TestClient) -> None:
    own = {**api.get("/spaces/masktas-tiny").json()["space"], "name": "mine", "num_heads": [4], "rel_pos": True}
    found = api.post("/spaces/describe", json=own, params={"num_classes": 1000}).json()
    assert (found["name"], found["space"], found["num_classes"]) == ("mine", own, 1000)
    assert found["size"] == 3 * (2**12 + 2**13 + 2**14)
    genes = {"embed_dim": 192, "depth": 12, "num_heads": [4] * 12, "mlp_ratio": [3.5] * 12, "rel_pos": True}
    assert found["costs"]["min"] == api.post("/architectures/cost", json=genes).json()
    assert found["architecture_schema"]["properties"]["num_heads"]["items"] == {"enum": [4]}
    assert found["published"] == []


def test_a_named_space_is_described_as_it_is_shown(api: TestClient) -> None:
    assert api.post("/spaces/describe", json="masktas-base").json() == api.get("/spaces/masktas-base").json()
    other = api.post("/spaces/describe", json={"preset": "micro", "overrides": {"depth": [3, 0]}})
    assert (other.status_code, other.json()["errors"][0]["pointer"]) == (422, "/overrides/depth/1")


def test_both_readings_of_the_base_heads_show_the_published_network(api: TestClient) -> None:
    for name in ("masktas-base", "masktas-base-8-10"):
        assert [known["name"] for known in api.get(f"/spaces/{name}").json()["published"]] == ["masktas-base"]


@pytest.mark.parametrize("page", re.findall(r"```json\n(.*?)```", SPACES_PAGE.read_text(encoding="utf-8"), re.DOTALL))
def test_examples_of_the_page_on_spaces_are_valid_bodies(api: TestClient, page: str) -> None:
    preview = api.post("/search/validate", json=json.loads(page))
    assert preview.status_code == 200, preview.text
    assert preview.json()["feasible"]["architectures"] > 1


@pytest.mark.parametrize(
    ("query", "pointer"), [("img_size=9", "img_size"), ("img_size=1", "img_size"), ("in_chans=2", "in_chans")]
)
def test_images_that_a_space_cannot_take_are_refused(api: TestClient, query: str, pointer: str) -> None:
    response = api.get(f"/spaces/micro?{query}")
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)


def test_an_unknown_space_is_not_found(api: TestClient) -> None:
    response = api.get("/spaces/huge")
    assert response.status_code == 404
    assert "masktas-tiny" in response.json()["detail"]


def test_a_candidate_is_described_with_costs_and_files(
    api: TestClient, stranger: TestClient, session: Session, owner: str, store: ArtifactStore
) -> None:
    job_id = add_job(session, owner, JobState.SUCCEEDED)
    add_candidate(session, job_id, 4, accuracy={"val": 0.9, "holdout": 0.8}, rank=0)
    path = f"/architectures/arch_{job_id.hex}_4"
    plain = api.get(path).json()
    assert Architecture.from_json({k: plain[k] for k in architecture().to_json()}) == architecture(52)
    assert (plain["accuracy"], plain["artifacts"]) == ({"val": 0.9, "holdout": 0.8}, [])
    exported = {**architecture(52).to_json(), "classes": ["a", "b"], "preprocessing": {"size": 8}}
    add_artifact(session, store, job_id, json.dumps(exported).encode(), "architecture.json", candidate_n=4)
    described = api.get(path).json()
    assert (described["classes"], described["preprocessing"]) == (["a", "b"], {"size": 8})
    assert [file["name"] for file in described["artifacts"]] == ["architecture.json"]
    assert described["artifacts"][0]["architecture"] == described["id"]
    assert stranger.get(path).status_code == 404


def test_the_winner_is_one_step_away(api: TestClient, session: Session, owner: str, store: ArtifactStore) -> None:
    job_id = add_job(session, owner, JobState.SUCCEEDED)
    path = f"/jobs/{format_id(IdKind.JOB, job_id)}"
    for n, rank in enumerate([1, 0, None]):
        add_candidate(session, job_id, n, rank=rank)
    for n in (0, 1):
        add_artifact(session, store, job_id, f'{{"n": {n}}}'.encode(), "architecture.json", candidate_n=n)
        weights = add_artifact(session, store, job_id, f"weights {n}".encode(), candidate_n=n)
    document = api.get(f"{path}/architecture")
    assert (document.json(), document.headers["Content-Type"]) == ({"n": 1}, "application/json")
    tag = document.headers["ETag"]
    assert api.get(f"{path}/architecture", headers={"If-None-Match": tag}).status_code == 304
    redirect = api.get(f"{path}/weights")
    assert redirect.status_code == 307
    assert redirect.headers["Location"] == f"/artifacts/{format_id(IdKind.ARTIFACT, weights.id)}/content"
    assert api.get(redirect.headers["Location"]).content == b"weights 1"


@pytest.mark.parametrize("what", ["architecture", "weights"])
def test_there_is_no_winner_before_the_end(api: TestClient, session: Session, owner: str, what: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    add_candidate(session, job_id, 0)
    response = api.get(f"/jobs/{format_id(IdKind.JOB, job_id)}/{what}")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert "running" in response.json()["detail"]
