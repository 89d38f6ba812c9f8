from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from models.architecture import Architecture
from search.metrics import costs_of
from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import BudgetExhausted, DatasetInvalid
from service.jobs.spec import RetrainSpec
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.data.pictures import save
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until
from workers.data.importing import import_dataset
from workers.protocol import ArtifactRef, Candidates, CheckpointMessage, Metric, Progress, Result, Start, Warn
from workers.stages.run import run_job, search_stages


@dataclass(frozen=True, slots=True)
class Run:
    """A search that ran to its end."""

    start: Start
    channel: StoppingChannel
    result: Result

    def artifact(self, name: str, candidate_n: int | None) -> Path:
        """The file of an artifact."""
        [ref] = [a for a in self.result.artifacts if (a.name, a.candidate_n) == (name, candidate_n)]
        return Path(self.start.run_dir) / ref.path


def run(start: Start, stop_at: StopAt | None = None) -> Run:
    channel = StoppingChannel(stop_at)
    return Run(start, channel, run_job(start, channel))


def unlabelled_digits() -> DatasetInfo:
    """The digits as a dataset of which nobody knows the labels."""
    return replace(BUILTINS["digits"], labelled=False, classes=())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(search_start(TINY, tmp_path_factory.mktemp("finished")))


def test_result_tells_the_whole_story(finished: Run) -> None:
    result = finished.result.result
    assert result["evaluations"] == 18
    assert result["stop_reason"] == finished.result.stop_reason == "generations"
    assert result["holdout"]["images"] == 359
    assert result["holdout"]["low"] < result["holdout"]["accuracy"] < result["holdout"]["high"]
    assert result["best"]["accuracy"]["holdout"] == result["holdout"]["accuracy"]
    assert result["parity"]["max_scaled_diff"] <= result["parity"]["tolerance"]
    assert result["parity"]["networks"] == 2
    assert result["baseline"]["evaluations"] == 18
    assert result["baseline"]["sentence"]
    generations = result["generations"]
    assert list(generations["reference"]) == ["score", "gmacs"]
    volumes = [row["hypervolume"] for row in generations["rows"]]
    assert len(volumes) == 3
    assert volumes[0] > 0
    assert volumes == sorted(volumes)
    told = [m.values["hypervolume"] for m in finished.channel.of_type(Metric) if m.stage == "search"]
    assert told == volumes
    assert result["baseline"]["hypervolume"] > 0
    assert result["rank_correlation"]["networks"] == 6
    assert result["rank_correlation"]["sentence"]
    measures = [row["name"] for row in result["rank_correlation"]["measures"]]
    assert measures[:6] == [
        "consistency",
        "consistency_bare",
        "reconstruction",
        "feature",
        "effective_rank",
        "fused",
    ]
    assert result["rank_correlation_retrained"] is None  # of two networks
    checks = {check["check"]: check for check in result["honesty"]}
    assert list(checks) == ["spread", "baseline", "inversion", "rank_correlation", "parameter_count", "holdout"]
    assert all(check["sentence"] and check["verdict"] in ("passed", "failed", "undecided") for check in checks.values())
    assert checks["spread"]["data"]["images"] == 64
    assert checks["baseline"]["data"]["difference"]["value"] == pytest.approx(result["baseline"]["lead"], abs=1e-5)
    assert checks["holdout"]["data"] == {"images": 359, "networks": 1}
    assert result["images"] == {"train": 1258, "val": 180, "holdout": 359}
    assert list(result["timings"]) == [stage.name for stage in search_stages()]
    json.dumps(result, allow_nan=False)


def test_every_artifact_is_what_its_digest_says(finished: Run) -> None:
    for ref in finished.result.artifacts:
        data = (Path(finished.start.run_dir) / ref.path).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (ref.sha256, ref.size_bytes), ref.name


def test_finalists_have_three_files_each_and_the_search_its_weights_and_rows(finished: Run) -> None:
    def names(artifacts: list[ArtifactRef], n: int | None) -> list[str]:
        return sorted(a.name for a in artifacts if a.candidate_n == n)

    for entry in finished.result.accuracies:
        files = names(finished.result.artifacts, entry.candidate_n)
        assert files == ["architecture.json", "model.py", "weights.safetensors"]
    shared = [f"{name}.safetensors" for name in ("decoder", "projector", "supernet", "teacher")] + ["search.jsonl"]
    assert names(finished.result.artifacts, None) == sorted(shared)


def test_winner_has_the_best_validation_accuracy_and_alone_a_holdout_figure(finished: Run) -> None:
    accuracies = finished.result.accuracies
    assert [entry.rank for entry in accuracies] == [0, 1]
    assert accuracies[0].accuracy["val"] >= accuracies[1].accuracy["val"]
    assert accuracies[0].accuracy["holdout"] is not None
    assert accuracies[1].accuracy["holdout"] is None
    assert accuracies[0].candidate_n == finished.result.result["best"]["candidate_n"]


def test_description_of_the_winner_tells_its_holdout_accuracy(finished: Run) -> None:
    best = finished.result.result["best"]
    document = json.loads(finished.artifact("architecture.json", best["candidate_n"]).read_text())
    assert document["accuracy"] == best["accuracy"]
    assert document["classes"] == list("0123456789")
    assert document["costs"] == best["costs"]
    assert document["provenance"]["dataset_digest"] == BUILTINS["digits"].digest
    assert document["provenance"]["supernet_digest"] == finished.result.result["digests"]["supernet"]
    assert RetrainSpec.model_validate(document["provenance"]["retraining"]).mode == "finetune"


def test_limits_hold_in_the_exported_file(finished: Run) -> None:
    for entry in finished.result.accuracies:
        with safe_open(finished.artifact("weights.safetensors", entry.candidate_n), "pt") as file:
            params = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
        assert params <= 15_000


def test_every_file_of_weights_loads_without_running_code(finished: Run) -> None:
    files = {ref.path for ref in finished.result.artifacts}
    files |= {ref.path for message in finished.channel.of_type(CheckpointMessage) for ref in message.files}
    of_weights = [
        path for path in files if not path.endswith((".json", ".jsonl", ".py", ".onnx", ".md", ".csv", ".txt"))
    ]
    assert of_weights
    for path in of_weights:
        with safe_open(Path(finished.start.run_dir) / path, "pt") as file:
            assert file.keys()


def test_candidates_are_unique_feasible_and_priced_as_deployed(finished: Run) -> None:
    batches = finished.channel.of_type(Candidates)
    rows = [row for batch in batches for row in batch.rows]
    assert [row.n for row in rows] == list(range(18))
    assert len({tuple(row.genotype) for row in rows}) == 18
    assert all(row.costs["params_m"] <= 0.015 and row.feasible for row in rows)
    assert all(row.architecture["num_classes"] == 10 for row in rows)
    assert [len(batch.rows) for batch in batches] == [6, 6, 6]
    front: set[int] = set()
    for batch in batches:
        front = (set() if batch.anew else front) - set(batch.left) | set(batch.joined)
    assert len(front) == finished.result.result["pareto_size"]


def test_progress_rises_within_each_stage_and_stages_follow_each_other(finished: Run) -> None:
    reports = finished.channel.of_type(Progress)
    assert list(dict.fromkeys(report.stage for report in reports)) == [stage.name for stage in search_stages()]
    for one, other in pairwise(reports):
        assert one.stage != other.stage or one.fraction <= other.fraction
    assert any(report.eta_seconds is not None for report in reports)


@pytest.mark.usefixtures("proofs_here")
def test_interruption_after_the_export_ends_in_the_same_result(finished: Run, tmp_path: Path) -> None:
    start = search_start(TINY, tmp_path)
    channel = run_until(start, StopAt("report"))
    again = run(resumed(start, channel.last_checkpoint, tmp_path)).result
    timeless = [{k: v for k, v in r.result.items() if k != "timings"} for r in (again, finished.result)]
    assert timeless[0] == timeless[1]
    digests = [{(a.name, a.candidate_n): a.sha256 for a in r.artifacts} for r in (again, finished.result)]
    assert digests[0] == digests[1]


@pytest.fixture(scope="module")
def label_free(tmp_path_factory: pytest.TempPathFactory) -> Run:
    start = search_start(
        merged(TINY, {"constraints": []}), tmp_path_factory.mktemp("label-free"), dataset=unlabelled_digits()
    )
    return run(start)


def test_label_free_search_exports_the_best_scored_backbone(label_free: Run) -> None:
    result = label_free.result.result
    scores = {row.n: row.score for batch in label_free.channel.of_type(Candidates) for row in batch.rows}
    best = result["best"]["candidate_n"]
    assert scores[best] == max(score for score in scores.values() if score is not None)
    assert result["holdout"] is None
    assert result["rank_correlation"] is None
    assert result["best"]["accuracy"] == {"val": None, "holdout": None}
    document = json.loads(label_free.artifact("architecture.json", best).read_text())
    assert (document["num_classes"], document["classes"]) == (0, [])


def test_labels_change_nothing_before_retraining(label_free: Run, tmp_path: Path) -> None:
    labelled = run_until(search_start(merged(TINY, {"constraints": []}), tmp_path), StopAt("retrain"))

    def scores(channel: StoppingChannel) -> list[tuple[list[float], float | None]]:
        return [(row.genotype, row.score) for batch in channel.of_type(Candidates) for row in batch.rows]

    assert scores(labelled) == scores(label_free.channel)
    digests = {ref.name: ref.sha256 for ref in labelled.last_checkpoint.files}
    assert digests["supernet.safetensors"] == label_free.result.result["digests"]["supernet"]


@pytest.mark.usefixtures("proofs_here")
def test_training_from_scratch_ignores_the_supernet(tmp_path: Path) -> None:
    weights = []
    for lr in (1e-3, 2e-3):
        changes: Mapping[str, Any] = {"supernet": {"lr": lr}, "retrain": {"mode": "scratch"}, "constraints": []}
        # One member only, so that both searches retrain the same network.
        space = {"overrides": {"embed_dim": [16], "depth": [1], "num_heads": [1], "mlp_ratio": [1.0]}}
        body = merged(TINY, {**changes, "space": space})
        channel = run_until(search_start(body, tmp_path / str(lr)), StopAt("export"))
        weights.append({ref.name: ref.sha256 for ref in channel.last_checkpoint.files})
    assert weights[0]["retrained-0.safetensors"] == weights[1]["retrained-0.safetensors"]
    assert weights[0]["supernet.safetensors"] != weights[1]["supernet.safetensors"]


@pytest.mark.usefixtures("proofs_here")
def test_exhausted_space_is_a_result(tmp_path: Path) -> None:
    space = {"overrides": {"embed_dim": [16], "depth": [1], "num_heads": [1, 2], "mlp_ratio": [1.0]}}
    body = merged(TINY, {"space": space, "search": {"algorithm": "nsga2"}})
    channel = run_until(search_start(body, tmp_path), StopAt("retrain"))
    outputs = channel.last_checkpoint.state["outputs"]["search"]
    assert (outputs["evaluations"], outputs["stop_reason"]) == (2, "space_exhausted")


@pytest.mark.usefixtures("every_progress")
@pytest.mark.parametrize("stage", ["teacher", "supernet"])
def test_budget_that_ends_before_the_search_has_nothing_to_show(stage: str, tmp_path: Path) -> None:
    channel = StoppingChannel(StopAt(stage, 0.3, "budget"))
    with pytest.raises(BudgetExhausted, match=rf"in stage {stage}.*budget\.max_wall_seconds"):
        run_job(search_start(TINY, tmp_path), channel)
    assert channel.last_checkpoint.stage == stage
    assert channel.last_checkpoint.state["state"]["loop"]["step"] > 0


@pytest.mark.usefixtures("every_progress", "proofs_here")
def test_budget_that_ends_in_the_search_gives_the_best_so_far(tmp_path: Path) -> None:
    body = merged(TINY, {"search": {"generations": 5}})
    cut = run(search_start(body, tmp_path), StopAt("search", 0.3, "budget"))
    result = cut.result.result
    assert result["stop_reason"] == cut.result.stop_reason == "budget"
    assert 6 <= result["evaluations"] < 36
    assert result["holdout"] is None
    assert cut.artifact("weights.safetensors", result["best"]["candidate_n"]).exists()


@pytest.mark.usefixtures("every_progress", "proofs_here")
def test_budget_that_ends_in_retraining_keeps_what_is_done(tmp_path: Path) -> None:
    cut = run(search_start(TINY, tmp_path), StopAt("retrain", 0.6, "budget"))
    assert len(cut.result.accuracies) == 1
    assert cut.result.result["holdout"]["images"] == 359
    assert cut.result.result["stop_reason"] == "budget"


@pytest.mark.usefixtures("proofs_here")
def test_budget_that_ends_in_the_export_costs_nothing_but_the_judgement(finished: Run, tmp_path: Path) -> None:
    cut = run(search_start(TINY, tmp_path), StopAt("export", reason="budget"))
    assert cut.result.result["stop_reason"] == "budget"
    assert cut.result.result["rank_correlation"] is None
    assert cut.result.result["best"] == finished.result.result["best"]


@pytest.fixture(scope="module")
def colour_dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetInfo, Path]:
    """Two classes of random colour images with an official test split, imported."""
    folder = tmp_path_factory.mktemp("colour")
    for i in range(40):
        save(folder / "in/train" / ("cat" if i % 2 else "dog") / f"{i}.png", seed=i)
    for i in range(8):
        save(folder / "in/test" / ("cat" if i % 2 else "dog") / f"{i}.png", seed=100 + i)
    imported = import_dataset(folder / "in", folder / "x.parquet")
    info = DatasetInfo(
        name="colour",
        id=None,
        digest=imported.digest,
        labelled=True,
        classes=imported.classes,
        images=imported.counts["images"],
        channels=imported.image["channels"],
        min_side=imported.image["min_side"],
        test_images=imported.counts["splits"]["test"],
    )
    return info, folder / "x.parquet"


@pytest.mark.usefixtures("proofs_here")
def test_imported_colour_images_with_a_batch_that_is_too_large(
    colour_dataset: tuple[DatasetInfo, Path], tmp_path: Path
) -> None:
    info, blob = colour_dataset
    start = search_start(merged(TINY, {"space": {"img_size": 8}}), tmp_path, dataset=info, blob=blob)
    spec = merged(start.spec, {"retrain": {"batch_size": 999}})
    channel = run_until(start.model_copy(update={"spec": spec}), StopAt("export"))
    assert {warning.code for warning in channel.of_type(Warn)} == {"batch_reduced"}
    images = channel.last_checkpoint.state["outputs"]["data"]["images"]
    assert images == {"train": 36, "val": 4, "holdout": 8}


def test_retraining_without_labels_is_refused_at_once(tmp_path: Path) -> None:
    start = search_start(TINY, tmp_path)
    spec = merged(start.spec, {"dataset": {"labels": "ignored"}})
    channel = StoppingChannel(None)
    with pytest.raises(DatasetInvalid, match="needs labels"):
        run_job(start.model_copy(update={"spec": spec}), channel)
    assert not channel.of_type(CheckpointMessage)


def test_costs_are_those_of_the_deployed_network(finished: Run) -> None:
    row = finished.channel.of_type(Candidates)[0].rows[0]
    arch = Architecture.from_json(row.architecture)
    assert row.costs == costs_of(arch)


@pytest.mark.usefixtures("proofs_here")
def test_listed_networks_are_scored_and_retrained_and_nothing_else_is(tmp_path: Path) -> None:
    listed = [
        {"embed_dim": 16, "depth": 1, "num_heads": [2], "mlp_ratio": [1.0]},
        {"embed_dim": 32, "depth": 1, "num_heads": [1], "mlp_ratio": [2.0]},
        {"embed_dim": 16, "depth": 2, "num_heads": [1, 2], "mlp_ratio": [2.0, 1.0]},
    ]
    changes = {"constraints": [], "search": {"algorithm": "listed", "architectures": listed}, "retrain": {"top_k": 9}}
    done = run(search_start(merged(TINY, changes), tmp_path))
    result = done.result.result
    assert (result["evaluations"], result["stop_reason"], result["baseline"]) == (3, "list_done", None)
    rows = [row for message in done.channel.of_type(Candidates) for row in message.rows]
    assert [row.genotype for row in rows] == [[1, 1, 2, 16], [1, 2, 1, 32], [2, 2, 1, 1, 2, 16]]
    assert sorted(entry.candidate_n for entry in done.result.accuracies) == [0, 1, 2]
