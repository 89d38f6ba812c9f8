"""Searches over widths: what they measure, choose and deliver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.slimmable import Slimmable
from models.supernet import Supernet
from models.templates import model
from service.errors import BudgetExhausted, NoFeasibleCandidate
from tests.stage_runs import TINY_SCALA, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until, search_to_export
from tests.unit.workers.stages.slimmable.widths import Run
from workers.protocol import CandidateRow, Candidates, CheckpointMessage, Warn
from workers.stages.run import run_job
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.supernet import slimmable_settings
from workers.training.files import load_parameters, read_tensors
from workers.training.streams import torch_stream

SEPARATE = {
    **{name: value for name, value in TINY_SCALA.items() if name != "constraints"},
    "method": "separate",
    "widths": {"smallest": 0.5, "step": 0.25},
}


def rows(run: Run) -> list[CandidateRow]:
    return [row for message in run.channel.of_type(Candidates) for row in message.rows]


def supernet(run: Run) -> Supernet:
    net = Slimmable.from_json(run.supernet.info["space"])
    whole = Supernet(net.largest, torch_stream(0))
    load_parameters(dict(whole.named_parameters()), read_tensors(run.file("supernet.safetensors"))[0])
    return whole


@torch.inference_mode()
def test_the_accuracy_of_every_width_is_that_of_its_slice(finished: Run) -> None:
    ctx = SlimmableContext(finished.start, StoppingChannel(None))
    labels = ctx.dataset.labels
    assert labels is not None
    val, whole = labels.of(ctx.dataset.val), supernet(finished)
    [images] = val.images.batches(len(val))
    measured = {width["head_dim"]: width["accuracy"] for width in finished.result.result["widths"]}
    assert list(measured) == list(ctx.net.served)
    for head_dim, accuracy in measured.items():
        logits = whole(images, ctx.net.architecture(head_dim), ctx.net.cut(head_dim))
        assert accuracy == float((logits.argmax(1) == torch.from_numpy(val.labels)).double().mean())


def test_widths_that_were_not_trained_are_marked(finished: Run) -> None:
    trained = [width["ratio"] for width in finished.result.result["widths"] if not width["interpolated"]]
    assert trained == [0.25, 0.5, 0.75, 1.0]
    assert finished.supernet.info["widths"] == finished.result.result["widths"]


def test_the_best_widths_within_the_limit_are_delivered_the_best_first(finished: Run) -> None:
    within = [row for row in rows(finished) if row.costs["params_m"] <= 0.02]
    assert {row.n for row in rows(finished) if row.feasible} == {row.n for row in within}
    assert len(within) < len(rows(finished))
    best = sorted(within, key=lambda row: (-(row.score or 0), row.n))[:2]
    assert [entry.candidate_n for entry in finished.result.accuracies] == [row.n for row in best]
    assert [entry.accuracy["val"] for entry in finished.result.accuracies] == [row.score for row in best]
    assert finished.result.accuracies[0].accuracy["holdout"] == finished.result.result["holdout"]["accuracy"]
    assert finished.result.accuracies[1].accuracy["holdout"] is None


@torch.inference_mode()
def test_an_exported_width_answers_as_its_slice(finished: Run) -> None:
    net = Slimmable.from_json(finished.supernet.info["space"])
    images = torch.randn(5, 1, 8, 8, generator=torch_stream(0, "x"))
    for entry in finished.result.accuracies:
        n = entry.candidate_n
        folder = finished.file("weights.safetensors", n).parent
        document = json.loads((folder / "architecture.json").read_text())
        expected = supernet(finished)(images, net.architecture(document["head_dim"]), net.cut(document["head_dim"]))
        torch.testing.assert_close(model.load(folder)(images), expected, rtol=1e-5, atol=1e-5)


def test_the_teacher_is_a_network_of_the_same_size_with_its_head(finished: Run) -> None:
    [teacher] = finished.announced("teacher")
    state = load_file(finished.file("teacher.safetensors"))
    assert state["head.weight"].shape == (10, 32)
    assert teacher.info["architecture"]["num_classes"] == 10
    assert 0 <= teacher.info["accuracy"]["val"] <= 1


def test_the_supernet_is_announced_once_when_its_widths_are_known(finished: Run) -> None:
    stages = [c.stage for c in finished.channel.of_type(CheckpointMessage) if any(c.resources)]
    assert stages == ["teacher", "search"]
    info = finished.supernet.info
    assert info["files"] == {"supernet.safetensors": finished.result.result["digests"]["supernet"]}
    assert {"network", "widths", "slicing", "teacher", "training", "dataset"} <= info["spec"].keys()


def test_widths_leave_the_grid_as_often_as_the_spec_says(tmp_path: Path) -> None:
    body = merged(TINY_SCALA, {"training": {"off_grid": 0.5, "off_grid_smallest": 0.125}})
    plan = slimmable_settings(SlimmableContext(search_start(body, tmp_path), StoppingChannel(None)), 1).plan
    assert (plan.off_grid, plan.off_grid_smallest) == (0.5, 0.125)


@pytest.mark.usefixtures("every_progress")
def test_a_search_that_was_interrupted_in_training_and_measuring_ends_alike(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    body = merged(TINY_SCALA, {"training": {"drop_path": 0.1, "mixup": 0.8}})
    undisturbed = search_to_export(tmp_path / "a", body=body)
    stops = (StopAt("supernet", 0.4), StopAt("supernet", 0.8, "drain"), StopAt("search", 0.5))
    assert search_to_export(tmp_path / "b", *stops, body=body) == undisturbed


@pytest.mark.usefixtures("every_progress")
def test_separate_training_that_was_interrupted_ends_alike(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    undisturbed = search_to_export(tmp_path / "a", body=SEPARATE)
    stops = (StopAt("separate", 0.2), StopAt("separate", 0.5), StopAt("separate", 0.9), StopAt("search", 0.4))
    interrupted = search_to_export(tmp_path / "b", *stops, body=SEPARATE)
    assert interrupted == undisturbed
    assert sorted(interrupted.digests) == [f"width-{head_dim}.safetensors" for head_dim in (12, 16, 8)]


def test_widths_trained_alone_are_no_supernet(tmp_path: Path) -> None:
    channel = run_until(search_start(SEPARATE, tmp_path), StopAt("export"))
    assert not [r for c in channel.of_type(CheckpointMessage) for r in c.resources if r.kind == "supernet"]
    [sent] = channel.of_type(Candidates)
    assert [row.architecture["head_dim"] for row in sent.rows] == [8, 12, 16]


def test_a_width_comes_out_alike_whichever_others_are_trained(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    both = search_to_export(tmp_path / "a", body=SEPARATE)
    fewer = search_to_export(tmp_path / "b", body=merged(SEPARATE, {"widths": {"step": 0.5}}))
    assert fewer.digests.items() < both.digests.items()


def test_no_offered_width_within_the_limits_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    # Heads of 11 channels alone are within; they are not of the grid, and one epoch leaves them below the line.
    start = search_start(
        merged(
            TINY_SCALA,
            {"constraints": [{"metric": "params_m", "min": 0.0125, "max": 0.014}], "widths": {"max_dip": 0.0}},
        ),
        tmp_path,
    )
    with pytest.raises(NoFeasibleCandidate) as caught:
        run_job(start, channel := StoppingChannel(None))
    [sent] = channel.of_type(Candidates)
    assert [row.feasible for row in sent.rows].count(True) == 1
    assert caught.value.extra["nearest_misses"]
    # What was trained is not lost with the job.
    assert [resource.kind for resource in channel.last_checkpoint.resources] == ["supernet"]


@pytest.mark.usefixtures("every_progress")
def test_a_budget_that_ends_while_measuring_keeps_what_is_known(tmp_path: Path) -> None:
    channel = run_until(search_start(TINY_SCALA, tmp_path), StopAt("search", 0.3, "budget"), StopAt("export"))
    found = channel.last_checkpoint.state["outputs"]["search"]
    assert {4, 8, 12, 16} <= {width["head_dim"] for width in found["widths"]} < set(range(4, 17))
    assert found["stop_reason"] == "budget"
    assert "budget_reached" in [warning.code for warning in channel.of_type(Warn)]


@pytest.mark.usefixtures("every_progress")
def test_a_budget_that_ends_in_training_has_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(BudgetExhausted):
        run_job(search_start(TINY_SCALA, tmp_path), StoppingChannel(StopAt("supernet", 0.5, "budget")))


def test_an_attempt_after_the_export_gives_the_same_result(finished: Run, tmp_path: Path) -> None:
    [exported, *_] = [c for c in finished.channel.of_type(CheckpointMessage) if c.stage == "export"]
    result = run_job(resumed(finished.start, exported, tmp_path), StoppingChannel(None))
    document = {**result.result, "timings": None}
    assert document == {**finished.result.result, "timings": None}
    assert [ref.sha256 for ref in result.artifacts] == [ref.sha256 for ref in finished.result.artifacts]
