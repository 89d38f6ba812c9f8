"""Latency measured on the machine that runs the search, with a clock that knows networks by their depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from timm.models.vision_transformer import VisionTransformer

from search.latency import LatencyTable
from search.latency_fit import fit_table
from search.space import Space
from service.errors import NoFeasibleCandidate
from service.jobs.resolve import make_space
from service.jobs.spec import SpaceSpec
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.search.latency_tables import setting_for
from workers.channel import StopRequested
from workers.latency.execution import Execution
from workers.latency.meter import NetworkMeter
from workers.protocol import Candidates, CheckpointMessage, Result, TrainerMessage, Warn
from workers.stages.run import run_job

MS = 1_000_000
PROOF = {"max_abs_diff": 0.0, "max_scaled_diff": 0.0, "tolerance": 1e-5, "images": 1}
LABEL = "this very machine"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[int], int]]:
    """``takes`` says how many nanoseconds a network of so many blocks takes; the true times depend on the host."""
    said: dict[str, Callable[[int], int]] = {"takes": lambda depth: depth * MS}

    def pass_of(self: Execution, network: VisionTransformer, images: Any, scratch: Path) -> Callable[[], int]:
        return lambda: said["takes"](len(network.blocks))

    monkeypatch.setattr(Execution, "pass_of", pass_of)
    monkeypatch.setattr(Execution, "label", property(lambda self: LABEL))
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run())
    # Other tests prove exports, in processes that take seconds to start.
    monkeypatch.setattr("workers.stages.export._prove", lambda ctx, tasks: [None for _ in tasks])
    monkeypatch.setattr("workers.stages.export._judged", lambda ctx, finalist, proof: PROOF | {"n": finalist.n})
    return said


def space() -> Space:
    return make_space(SpaceSpec.model_validate(TINY["space"] | {"img_size": 8, "in_chans": 1}))


def table(device: str = LABEL) -> LatencyTable:
    """Predicts one millisecond a block."""
    members = list(space().members(10))
    return fit_table(setting_for(space(), 10, device=device), [(arch, arch.depth * MS) for arch in members])


def searched(folder: Path, **limit: Any) -> tuple[Result, RecordingChannel]:
    body = merged(TINY, {"search": {"baseline": "none"}, "constraints": [{"metric": "latency_ms", **limit}]})
    channel = RecordingChannel()
    return run_job(search_start(body, folder), channel), channel


def description(result: Result, folder: Path, n: int) -> dict[str, Any]:
    [path] = [a.path for a in result.artifacts if a.candidate_n == n and a.name == "architecture.json"]
    found: dict[str, Any] = json.loads((folder / "runs" / "1" / path).read_text())
    return found


def test_a_winner_tells_predicted_and_measured_latency(clock: dict[str, Any], tmp_path: Path) -> None:
    clock["takes"] = lambda depth: depth * MS + 250_000
    result, _ = searched(tmp_path, table=table().to_json(), max=1.5)
    best = result.result["best"]
    told = description(result, tmp_path, best["candidate_n"])["costs"]["latency_ms"]
    assert told == best["latency_ms"]
    assert (told["predicted"], told["measured"], told["device"]) == (pytest.approx(1, abs=1e-3), 1.25, LABEL)
    assert [(entry.costs, entry.feasible) for entry in result.accuracies] == [({"latency_measured_ms": 1.25}, True)] * 2


def test_networks_that_are_slower_than_predicted_are_passed_over_for_the_next_best(
    clock: dict[str, Any], tmp_path: Path
) -> None:
    clock["takes"] = lambda depth: (depth if depth == 1 else 4) * MS  # the table says 2 for two blocks
    result, channel = searched(tmp_path, table=table().to_json(), max=2.5)
    depths = {row.n: row.genotype[0] for batch in channel.of_type(Candidates) for row in batch.rows}
    assert set(depths.values()) == {1, 2}
    assert {depths[entry.candidate_n] for entry in result.accuracies} == {1}
    assert "latency_mispredicted" in {warning.code for warning in channel.of_type(Warn)}


def test_no_network_as_fast_as_predicted_ends_with_the_nearest_misses(clock: dict[str, Any], tmp_path: Path) -> None:
    clock["takes"] = lambda depth: (depth + 5) * MS
    with pytest.raises(NoFeasibleCandidate, match="measured on this worker") as caught:
        searched(tmp_path, table=table().to_json(), max=2.5)
    misses = [miss["latency_ms"]["measured"] for miss in caught.value.extra["nearest_misses"]]
    assert misses == sorted(misses)
    assert misses[0] == 6.0


def test_an_export_that_is_slower_than_its_network_was_leaves_the_first_place(
    clock: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    original = NetworkMeter.measure_export

    def first_is_slow(self: NetworkMeter, folder: Path, arch: Any) -> Any:
        measured.append(int(folder.name.removeprefix("export-")))
        clock["takes"] = lambda depth: 9 * MS if len(measured) == 1 else depth * MS
        return original(self, folder, arch)

    monkeypatch.setattr(NetworkMeter, "measure_export", first_is_slow)
    result, _ = searched(tmp_path, table=table().to_json(), max=2.5)
    assert result.result["best"]["candidate_n"] == measured[1]
    assert [(entry.candidate_n, entry.feasible) for entry in result.accuracies] == [
        (measured[1], True),
        (measured[0], False),
    ]


class StoppingAtMeasurements(RecordingChannel):
    """Asks for a stop with the first checkpoint that knows how long a network takes that is to be delivered."""

    def send(self, message: TrainerMessage) -> None:
        """Look into the checkpoint."""
        super().send(message)
        if isinstance(message, CheckpointMessage) and (message.binding or "latency" in message.state["state"]):
            self.request_stop("pause")


def test_what_is_to_be_delivered_is_measured_once_whatever_interrupts_it(
    clock: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def counted(of: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def measure(self: NetworkMeter, *network: Any) -> Any:
            measured.append((of, network[-1].genotype))
            return original(self, *network)

        return measure

    for name in ("measure", "measure_export"):
        monkeypatch.setattr(NetworkMeter, name, counted(name, getattr(NetworkMeter, name)))
    limit = {"metric": "latency_ms", "table": table().to_json(), "max": 2.5}
    start = search_start(merged(TINY, {"search": {"baseline": "none"}, "constraints": [limit]}), tmp_path)
    for expected in (1, 2, 3):  # two finalists, then their exports
        channel = StoppingAtMeasurements()
        with pytest.raises(StopRequested):
            run_job(start, channel)
        assert len(measured) == expected
        start = resumed(start, channel.of_type(CheckpointMessage)[-1], tmp_path)
    clock["takes"] = lambda depth: 9 * MS  # for what is not known yet: the second of the exports
    result = run_job(start, RecordingChannel())
    assert [what for what, _ in measured] == ["measure"] * 2 + ["measure_export"] * 2
    assert len(measured) == len(set(measured))
    assert [entry.feasible for entry in result.accuracies] == [True, False]


def test_a_table_of_another_machine_leaves_the_prediction_and_says_so(clock: dict[str, Any], tmp_path: Path) -> None:
    result, channel = searched(tmp_path, table=table("a board").to_json(), max=1.5)
    assert "latency_ms" not in result.result["best"]
    assert result.result["best"]["costs"]["latency_ms"] == pytest.approx(1, abs=1e-3)
    assert "latency_not_measured" in {warning.code for warning in channel.of_type(Warn)}


def test_candidates_are_measured_on_the_worker_when_the_limit_says_so(clock: dict[str, Any], tmp_path: Path) -> None:
    result, channel = searched(tmp_path, device="worker", max=1.5)
    rows = [row for batch in channel.of_type(Candidates) for row in batch.rows]
    assert {(row.genotype[0], row.costs["latency_ms"], row.feasible) for row in rows} == {
        (1, 1.0, True),
        (2, 2.0, False),
    }
    assert result.result["best"]["latency_ms"]["measured"] == 1.0
