"""Searches of every algorithm that are stopped in the middle of a generation go on exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from models.architecture import Architecture
from service.errors import SearchUnavailable
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import Found, StopAt, StoppingChannel, kept_rows, run_in_attempts, run_until
from workers.protocol import SEARCH_INPUT, BlobRef, CandidateRow, Candidates, CheckpointMessage, Start
from workers.stages.fitness import Fitness
from workers.stages.run import run_job
from workers.stages.search_ledger import SEARCH_FILE

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


def test_a_search_that_is_gone_on_with_finds_what_a_longer_one_does(
    trained: tuple[Start, CheckpointMessage], tmp_path: Path
) -> None:
    before, checkpoint = trained

    def order(name: str, generations: int) -> Start:
        spec = search_start(merged(BODY, {"search": {"generations": generations}}), tmp_path / name / "spec").spec
        return resumed(before.model_copy(update={"spec": spec}), checkpoint, tmp_path / name)

    short = order("short", 1)
    run_until(short, StopAt("retrain"))
    whole = BlobRef(name=SEARCH_INPUT, path=str(Path(short.run_dir) / SEARCH_FILE), sha256="0" * 64)
    longer = order("longer", 3).model_copy(update={"inputs": [whole], "checkpoint_s": 0.0})
    # The second attempt finds everything in the checkpoint of the first.
    first = run_until(longer, StopAt("search", 0.4)).last_checkpoint
    again = resumed(longer.model_copy(update={"inputs": []}), first, tmp_path / "longer")
    found = run_in_attempts(again, tmp_path / "longer", StopAt("retrain"))
    at_once = run_in_attempts(order("at once", 3), tmp_path / "at once", StopAt("retrain"))
    assert found.outputs == at_once.outputs


def test_earlier_candidates_are_told_again_and_nothing_is_scored_twice(
    trained: tuple[Start, CheckpointMessage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, checkpoint = trained
    short = resumed(before, checkpoint, tmp_path / "short")
    told = rows_of(run_until(short, StopAt("retrain")))
    spec = merged(short.spec, {"search": {"generations": 4}})
    whole = BlobRef(name=SEARCH_INPUT, path=str(Path(short.run_dir) / SEARCH_FILE), sha256="0" * 64)
    order = before.model_copy(update={"spec": spec, "inputs": [whole]})
    scored: list[Any] = []
    measure = Fitness.measure

    def counted(self: Fitness, archs: Sequence[Architecture], **rest: Any) -> Any:
        scored.extend(archs)
        return measure(self, archs, **rest)

    monkeypatch.setattr(Fitness, "measure", counted)
    channel = run_until(resumed(order, checkpoint, tmp_path / "longer"), StopAt("retrain"))
    rows = rows_of(channel)
    assert rows[: len(told)] == told
    # An attempt that goes on from a checkpoint tells only what comes behind it.
    kinds = [type(message) for message in channel.messages if isinstance(message, Candidates | CheckpointMessage)]
    assert kinds[0] is Candidates
    assert len(rows) == len(told) + 6
    known = {tuple(row.genotype) for row in told}
    assert scored
    assert not known & {tuple(map(float, arch.genotype)) for arch in scored}


def test_a_search_of_another_version_cannot_be_gone_on_with(
    trained: tuple[Start, CheckpointMessage], tmp_path: Path
) -> None:
    start, checkpoint = trained
    path = tmp_path / "search.jsonl"
    path.write_text('["end",{"search":{"state":{"version":0}},"generations":{}}]\n')
    whole = BlobRef(name=SEARCH_INPUT, path=str(path), sha256="0" * 64)
    order = resumed(start.model_copy(update={"inputs": [whole]}), checkpoint, tmp_path)
    with pytest.raises(SearchUnavailable, match="version: found 0"):
        run_job(order, StoppingChannel())


def rows_of(channel: StoppingChannel) -> list[CandidateRow]:
    return [row for batch in channel.of_type(Candidates) for row in batch.rows]


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
