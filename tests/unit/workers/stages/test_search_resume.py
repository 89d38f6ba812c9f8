"""Searches of every algorithm that are stopped in the middle of a generation go on exactly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import Found, StopAt, kept_rows, run_in_attempts, run_until
from workers.protocol import CheckpointMessage, Start

pytestmark = pytest.mark.usefixtures("every_progress")

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "nsga2": {
        "objectives": [{"metric": "score", "goal": "max"}, {"metric": "params_m", "goal": "min"}],
        "search": {"algorithm": "nsga2"},
    },
    "predictor": {"search": {"algorithm": "predictor", "prescreen": 2}},
}

# As many generations as it takes until the predictor has enough scores to screen children.
BODY = merged(TINY, {"constraints": [], "search": {"generations": 3, "evaluation": {"images": 16}}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Start, CheckpointMessage]:
    """What searches of all algorithms go on from: the checkpoint at the end of their supernet's training."""
    start = search_start(BODY, tmp_path_factory.mktemp("trained"))
    checkpoints = run_until(start, StopAt("search")).of_type(CheckpointMessage)
    return start, next(message for message in checkpoints if message.stage == "supernet" and message.resources)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stopped_in_the_middle_of_generations_it_finds_the_same(
    algorithm: str, trained: tuple[Start, CheckpointMessage], tmp_path: Path
) -> None:
    spec = search_start(merged(BODY, ALGORITHMS[algorithm]), tmp_path).spec

    def searched(name: str, *stops: StopAt, checkpoint_s: float = 1e9) -> Found:
        start, checkpoint = trained
        order = start.model_copy(update={"spec": spec, "checkpoint_s": checkpoint_s})
        return run_in_attempts(resumed(order, checkpoint, tmp_path / name), tmp_path / name, *stops, StopAt("retrain"))

    undisturbed = searched("twin")
    # Candidates are measured one by one here: 0.22 and 0.4 are inside the second and the fourth of four generations.
    assert searched("stopped", StopAt("search", 0.22), StopAt("search", 0.4), checkpoint_s=0.0) == undisturbed
    assert len(undisturbed.rows) == 24


def test_a_checkpoint_of_an_earlier_version_goes_on(trained: tuple[Start, CheckpointMessage], tmp_path: Path) -> None:
    start, checkpoint = trained
    undisturbed = run_in_attempts(resumed(start, checkpoint, tmp_path / "twin"), tmp_path / "twin", StopAt("retrain"))
    order = resumed(start, checkpoint, tmp_path)
    saved = run_until(order, StopAt("search", 0.6)).last_checkpoint
    again = resumed(order, saved.model_copy(update={"state": with_everything_in_it(order, saved)}), tmp_path)
    assert run_in_attempts(again, tmp_path, StopAt("retrain")).outputs == undisturbed.outputs


def with_everything_in_it(start: Start, checkpoint: CheckpointMessage) -> dict[str, Any]:
    """The state of a checkpoint as it was before there were files of rows."""
    rows, state = kept_rows(start, checkpoint), dict(checkpoint.state["state"])
    del state["ledger"]
    state["search"] = {**state["search"], "history": rows["told"]}
    state["baseline"] = {**state["baseline"], "history": rows["random"]}
    state |= {"measures": rows["measures"], "dropped": rows["dropped"], "latencies": rows["latency"]}
    return {**checkpoint.state, "state": state}
