"""Jobs on a slimmable network that exists: a width taken out, features carried elsewhere, training continued."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from models.slimmable import Slimmable
from models.supernet import Supernet
from models.templates import model
from search.cost import cost
from service.datasets.builtin import BUILTINS
from service.errors import NoFeasibleCandidate, SupernetUnavailable
from service.jobs.spec import ExtractSpec
from service.supernets.info import SupernetInfo
from tests.channels import RecordingChannel
from tests.stage_runs import TINY_SCALA, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until
from tests.unit.workers.stages.slimmable.widths import Run, job_on, run_whole
from workers.latency.execution import Execution
from workers.protocol import BlobRef
from workers.stages.context import Context
from workers.stages.run import run_job
from workers.stages.slimmable.extract import Latency, chosen_width
from workers.stages.slimmable.known import KnownNetwork
from workers.training.files import load_parameters, read_tensors
from workers.training.streams import torch_stream

TRANSFER = {"dataset": {"id": "digits"}, "k": 5, "batch_size": 512}


@torch.inference_mode()
def test_an_extracted_width_is_a_plain_network_that_answers_as_the_slice(finished: Run, tmp_path: Path) -> None:
    run = run_whole(job_on(finished, "extract", {"width": 14, "head_dims": [7]}, tmp_path))
    net = Slimmable.from_json(finished.supernet.info["space"])
    whole = Supernet(net.largest, torch_stream(0))
    load_parameters(dict(whole.named_parameters()), read_tensors(finished.file("supernet.safetensors"))[0])
    images = torch.randn(5, 1, 8, 8, generator=torch_stream(0, "x"))
    folder = run.file("weights.safetensors").parent
    expected = whole(images, net.architecture(7), net.cut(7))
    torch.testing.assert_close(model.load(folder)(images), expected, rtol=1e-5, atol=1e-5)

    known = {width["head_dim"]: width for width in finished.supernet.info["widths"]}[7]
    document = json.loads((folder / "architecture.json").read_text())
    assert document["accuracy"]["val"] == known["accuracy"] == run.result.result["accuracy"]
    assert document["classes"] == list("0123456789")
    assert document["provenance"]["supernet_digest"] == finished.supernet.info["files"]["supernet.safetensors"]
    assert run.result.result["costs"]["params_m"] == cost(net.architecture(7)).params_m
    assert (run.result.result["width"], run.result.result["interpolated"]) == (14, True)


@pytest.mark.parametrize(("best_first", "taken"), [([16, 12, 10, 8], 10), ([16, 8, 11, 10, 12, 4], 8)])
def test_the_best_width_that_is_fast_enough_is_taken(
    best_first: list[int], taken: int, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that only passes run through takes as long as the network is wide: the true one depends on the host.
    monkeypatch.setattr(Execution, "pass_of", lambda how, network, images, scratch: lambda: network.embed_dim)
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run() * 100_000)
    start = job_on(finished, "extract", {}, tmp_path)
    limits = ExtractSpec(supernet="sn_1", max_latency_ms=2.0, head_dims=best_first, batch_size=2)
    weights = KnownNetwork.of(start).weights()
    head_dim, latency = chosen_width(Context(start, RecordingChannel()), limits, weights)
    assert head_dim == taken
    assert latency == Latency(median_ms=taken / 5, batch_size=2, repeats=15, threads=torch.get_num_threads())


def test_no_width_that_is_fast_enough_is_an_error_with_the_fastest(finished: Run, tmp_path: Path) -> None:
    limits = {"max_latency_ms": 1e-6, "head_dims": [5, 4]}
    with pytest.raises(NoFeasibleCandidate) as caught:
        run_whole(job_on(finished, "extract", limits, tmp_path))
    assert caught.value.extra["fastest_ms"] > 0


def test_damaged_weights_are_named_and_fetched_anew(finished: Run, tmp_path: Path) -> None:
    start = job_on(finished, "extract", {"width": 14, "head_dims": [7]}, tmp_path)
    damaged = tmp_path / "blob"
    damaged.write_bytes(finished.file("supernet.safetensors").read_bytes()[:-100])
    start = start.model_copy(
        update={"inputs": [BlobRef(name="supernet.safetensors", path=str(damaged), sha256="0" * 64)]}
    )
    with pytest.raises(SupernetUnavailable):
        run_job(start, RecordingChannel())
    assert not damaged.exists()


def test_a_transfer_judges_every_offered_width_and_goes_on_where_it_was_stopped(
    finished: Run, tmp_path: Path, every_progress: None
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    undisturbed = run_whole(job_on(finished, "transfer", TRANSFER, tmp_path / "a")).result.result
    offered = [width["head_dim"] for width in finished.supernet.info["widths"] if width["offered"]]
    assert [width["head_dim"] for width in undisturbed["widths"]] == offered
    widest = undisturbed["widths"][-1]
    assert widest["linear_probe"] > 0.3  # chance is 0.1, and the network has seen an epoch
    assert widest["knn"] > 0.3

    start = job_on(finished, "transfer", TRANSFER, tmp_path / "b")
    stopped = run_until(start, StopAt("transfer", 0.5))
    again = StoppingChannel(None)
    assert run_job(resumed(start, stopped.last_checkpoint, tmp_path / "b"), again).result == undisturbed


def test_a_trained_network_is_continued_on_another_grid(finished: Run, tmp_path: Path) -> None:
    told = finished.supernet.info
    warm = SupernetInfo(
        reference="sn_1",
        method=told["method"],
        space=told["space"],
        dataset=told["dataset"],
        classes=tuple(told["classes"]),
        spec=told["spec"],
        files=told["files"],
        outputs={},
        trained_for=told["trained_for"],
    )
    body = merged(TINY_SCALA, {"warm_start": "sn_1", "widths": {"step": 0.125}, "training": {"lr": 1e-9}})
    body = {name: value for name, value in body.items() if name != "network"}
    start = search_start(body, tmp_path, warm=warm, dataset=BUILTINS["digits"])
    path = finished.file("supernet.safetensors")
    start = start.model_copy(
        update={"inputs": [BlobRef(name=path.name, path=str(path), sha256=told["files"][path.name])]}
    )
    channel = run_until(start, StopAt("export"))
    found = channel.last_checkpoint.state["outputs"]["search"]["widths"]
    assert [width["head_dim"] for width in found if not width["interpolated"]] == [4, 6, 8, 10, 12, 14, 16]
    # At a rate of nearly zero it is still the network that was taken over.
    before, _ = read_tensors(path)
    after, _ = read_tensors(Path(start.run_dir) / "supernet.safetensors")
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-5)
