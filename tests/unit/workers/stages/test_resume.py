from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models.architecture import Architecture
from tests.stage_runs import TINY, resumed, search_start
from tests.unit.workers.stages.runs import Found, StopAt, StoppingChannel, kept_rows, run_until, search_to_export
from workers.channel import StopRequested
from workers.protocol import CheckpointMessage
from workers.stages.run import run_job
from workers.stages.scoring import Measures, MeasureScorer

pytestmark = pytest.mark.usefixtures("every_progress")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return search_to_export(tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize(
    "stops",
    [
        [StopAt("data")],
        [StopAt("teacher", 0.3)],
        [StopAt("teacher", 1.0)],
        [StopAt("supernet", 0.01), StopAt("supernet", 0.5)],
        [StopAt("search", 0.1)],
        [StopAt("search", 0.4), StopAt("search", 0.8)],
        [StopAt("retrain", 0.2), StopAt("retrain", 0.7)],
        [StopAt("teacher", 0.9), StopAt("supernet", 0.9), StopAt("search", 0.3), StopAt("retrain", 0.5)],
    ],
    ids=lambda stops: "-".join(f"{stop.stage}{stop.fraction:g}" for stop in stops),
)
def test_interrupted_search_finds_the_same(stops: list[StopAt], undisturbed: Found, tmp_path: Path) -> None:
    found = search_to_export(tmp_path, *stops)
    assert found.outputs == undisturbed.outputs
    assert found.digests == undisturbed.digests
    assert found.rows == undisturbed.rows


def test_checkpoints_in_between_change_nothing(undisturbed: Found, tmp_path: Path) -> None:
    assert search_to_export(tmp_path, checkpoint_s=0.0) == undisturbed


def test_another_seed_finds_something_else(undisturbed: Found, tmp_path: Path) -> None:
    other = search_to_export(tmp_path, changes={"seed": 1})
    assert other.digests["supernet.safetensors"] != undisturbed.digests["supernet.safetensors"]


def test_scored_candidates_are_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = search_start(TINY, tmp_path)
    first = run_until(start, StopAt("search", 0.5))
    kept = kept_rows(start, first.last_checkpoint)
    assert kept["told"]
    scored: list[Architecture] = []
    original = MeasureScorer.score_all

    def score_all(self: MeasureScorer, archs: Sequence[Architecture], *rest: Any) -> list[Measures]:
        scored.extend(archs)
        return original(self, archs, *rest)

    monkeypatch.setattr(MeasureScorer, "score_all", score_all)
    run_until(resumed(start, first.last_checkpoint, tmp_path), StopAt("retrain"))
    before = {tuple(row[-1]) for row in kept["told"]}
    measured = {tuple(genotype) for genotype, _ in kept["measures"]}
    assert measured >= before
    assert scored
    assert not measured & {arch.genotype for arch in scored}


@pytest.mark.parametrize(
    ("stage", "reason"), [("teacher", "cancel"), ("supernet", "pause"), ("search", "drain"), ("retrain", "cancel")]
)
def test_stop_comes_after_a_checkpoint_of_that_moment(stage: str, reason: str, tmp_path: Path) -> None:
    channel = run_until(search_start(TINY, tmp_path), StopAt(stage, 0.3, reason))  # type: ignore[arg-type]
    assert channel.messages[-1] == channel.last_checkpoint
    assert channel.last_checkpoint.stage == stage
    assert channel.last_checkpoint.state["state"]


def test_lost_lease_stops_without_a_checkpoint(tmp_path: Path) -> None:
    channel = run_until(search_start(TINY, tmp_path), StopAt("supernet", 0.3, "lease_lost"))
    assert channel.last_checkpoint.stage == "teacher"


def test_checkpoint_names_only_files_that_are_needed(tmp_path: Path) -> None:
    channel = run_until(search_start(TINY, tmp_path, checkpoint_s=0.0), StopAt("export"))
    by_stage: dict[str, set[str]] = {}
    for checkpoint in channel.of_type(CheckpointMessage):
        by_stage[checkpoint.stage] = {ref.name for ref in checkpoint.files}
    assert by_stage["data"] == set()
    assert by_stage["teacher"] == {"teacher.safetensors"}
    parts = ("teacher", "supernet", "projector", "decoder")
    assert by_stage["search"] == {"search.jsonl", *(f"{part}.safetensors" for part in parts)}
    assert "training.safetensors" not in by_stage["retrain"]


def test_teacher_and_supernet_are_announced_once_with_their_stage(tmp_path: Path) -> None:
    channel = StoppingChannel(StopAt("search"))
    with pytest.raises(StopRequested):
        run_job(search_start(TINY, tmp_path), channel)
    announced = {c.stage: [r.kind for r in c.resources] for c in channel.of_type(CheckpointMessage) if c.resources}
    assert announced == {"teacher": ["teacher"], "supernet": ["supernet"]}
