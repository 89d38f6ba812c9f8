"""One slimmable network through HTTP: trained once, any of its widths taken out in a moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

from service.client import Client, Job
from service.embedded import Embedded
from tests.stage_runs import TINY_SCALA, merged
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

LIMIT_M = 0.013
SCALA = merged(
    TINY_SCALA,
    {
        "training": {"epochs": 8, "batch_size": 64},
        "constraints": [{"metric": "params_m", "max": LIMIT_M}],
        "export": {"top_k": 1},
    },
)


@dataclass(frozen=True)
class Trained:
    """A finished search over widths, and the slimmable network that it left."""

    job: Job
    supernet: dict[str, Any]


@pytest.fixture
def http(stack: Embedded) -> httpx.Client:
    return httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=30)


@pytest.fixture(scope="module")
def trained(stack: Embedded) -> Trained:
    with Client(stack.url, stack.api_key) as client:
        job = client.search(SCALA)
        for _ in client.follow(job.id):
            pass
        job = client.job(job.id)
        assert job.status == "succeeded", job.error
        [supernet] = [supernet for supernet in client.supernets() if supernet.job == job.id]
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    return Trained(job, httpx.get(f"{stack.url}/supernets/{supernet.id}", headers=headers, timeout=30).json())


def extracted(http: httpx.Client, client: Client, trained: Trained, body: dict[str, Any]) -> Job:
    answer = http.post(f"/supernets/{trained.supernet['id']}/extract", json=body)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    wait_until(lambda: client.job(job_id).done, "the extraction ends", limit_s=120)
    job = client.job(job_id)
    assert job.status == "succeeded", job.error
    return job


def plain(folder: Path) -> VisionTransformer:
    """timm's own class with the exported weights, made from nothing but the two files."""
    how = json.loads((folder / "architecture.json").read_text())
    network = VisionTransformer(
        img_size=how["img_size"],
        patch_size=how["patch_size"],
        in_chans=how["in_chans"],
        num_classes=how["num_classes"],
        embed_dim=how["embed_dim"],
        depth=how["depth"],
        num_heads=how["num_heads"][0],
        mlp_ratio=how["mlp_ratio"][0],
        global_pool=how["pool"],
    )
    network.load_state_dict(load_file(folder / "weights.safetensors"))
    return network.eval()


def test_every_width_is_listed_with_its_accuracy(trained: Trained) -> None:
    widths = trained.supernet["widths"]
    assert [width["width"] for width in widths] == list(range(8, 33, 2))
    assert [width["width"] for width in widths if not width["interpolated"]] == [8, 16, 24, 32]
    assert widths[-1]["accuracy"] > 0.3  # chance is 0.1


def test_the_winner_is_the_best_offered_width_within_the_limit(client: Client, trained: Trained) -> None:
    candidates = client.candidates(trained.job.id)
    offered = {width["width"] for width in trained.supernet["widths"] if width["offered"]}
    costs = {client.architecture(c.id)["embed_dim"]: c for c in candidates}
    within = [c for width, c in costs.items() if width in offered and c.costs["params_m"] <= LIMIT_M]
    [winner] = [c for c in candidates if c.rank == 0]
    assert winner.score == max(c.score or 0 for c in within)
    assert winner.accuracy is not None
    assert winner.accuracy["holdout"] > 0.1


@torch.inference_mode()
def test_a_width_that_was_never_trained_loads_with_plain_timm(
    http: httpx.Client, client: Client, trained: Trained, tmp_path: Path
) -> None:
    job = extracted(http, client, trained, {"width": 30})
    assert (job.result or {})["interpolated"] is True
    client.download_all(client.artifacts(job.id), tmp_path)
    assert plain(tmp_path)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    known = {width["width"]: width for width in trained.supernet["widths"]}[30]
    assert json.loads((tmp_path / "architecture.json").read_text())["accuracy"]["val"] == known["accuracy"]


def test_the_best_width_within_a_number_of_parameters_is_taken_out(
    http: httpx.Client, client: Client, trained: Trained, tmp_path: Path
) -> None:
    job = extracted(http, client, trained, {"max_params_m": LIMIT_M})
    client.download_all(client.artifacts(job.id), tmp_path)
    weights = http.get(f"/jobs/{job.id}/weights", follow_redirects=True)
    assert weights.content == (tmp_path / "weights.safetensors").read_bytes()
    counted = sum(parameter.numel() for parameter in plain(tmp_path).parameters())
    assert counted <= LIMIT_M * 1_000_000
    assert counted == round((job.result or {})["costs"]["params_m"] * 1_000_000)
    winner = (trained.job.result or {})["best"]
    assert (job.result or {})["accuracy"] == winner["score"]


def test_a_width_that_does_not_exist_is_refused_with_those_that_do(http: httpx.Client, trained: Trained) -> None:
    answer = http.post(f"/supernets/{trained.supernet['id']}/extract", json={"width": 31})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_width")


def test_features_are_judged_on_other_images(http: httpx.Client, client: Client, trained: Trained) -> None:
    body = {"dataset": {"id": "digits", "val_fraction": 0.3}, "k": 3}
    answer = http.post(f"/supernets/{trained.supernet['id']}/transfer", json=body)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    wait_until(lambda: client.job(job_id).done, "the transfer ends", limit_s=120)
    result = client.job(job_id).result
    assert result is not None, client.job(job_id).error
    assert result["images"]["val"] == 539
    assert all(width["linear_probe"] > 0.3 for width in result["widths"] if width["width"] == 32)
