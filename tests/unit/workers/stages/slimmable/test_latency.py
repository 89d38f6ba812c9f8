"""Limits on latency in searches over widths, with a clock that knows networks by their width."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from timm.models.vision_transformer import VisionTransformer

from models.architecture import Architecture
from service.errors import NoFeasibleCandidate
from tests.channels import RecordingChannel
from tests.stage_runs import TINY_SCALA, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until
from workers.channel import StopRequested
from workers.latency.execution import Execution
from workers.latency.measure import Latency
from workers.latency.meter import NetworkMeter
from workers.protocol import CandidateRow, Candidates, CheckpointMessage, Start, TrainerMessage
from workers.stages.run import run_job

MS = 1_000_000
PROOF = {"max_abs_diff": 0.0, "max_scaled_diff": 0.0, "tolerance": 1e-5, "images": 1}
FREE = [{"metric": "params_m", "max": 0.02}]


def fast(max_ms: float, **more: Any) -> list[dict[str, Any]]:
    """The limit of the small run, and one on latency."""
    measured = {"batch_size": 1, "percentile": 50, "runtime": "torch"}
    return [*FREE, {"metric": "latency_ms", "max": max_ms, "device": "worker", **measured, **more}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Start, CheckpointMessage]:
    """A search whose network is trained, and that has measured nothing yet."""
    start = search_start(TINY_SCALA, tmp_path_factory.mktemp("trained"))
    channel = run_until(start, StopAt("search", 0.0))
    return start, next(m for m in reversed(channel.of_type(CheckpointMessage)) if m.stage == "supernet")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths that were measured, in order. A network takes as many tenths of a millisecond as a token has channels."""
    widths: list[int] = []

    def pass_of(how: Execution, network: VisionTransformer, images: Any, scratch: Path) -> Callable[[], int]:
        widths.append(network.embed_dim)
        return lambda: network.embed_dim * MS // 10

    monkeypatch.setattr(Execution, "pass_of", pass_of)
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run())
    # Other tests prove exports, in processes that take seconds to start.
    monkeypatch.setattr("workers.stages.export._prove", lambda ctx, tasks: [None for _ in tasks])
    monkeypatch.setattr("workers.stages.export._judged", lambda ctx, finalist, proof: PROOF | {"n": finalist.n})
    return widths


def limited(trained: tuple[Start, CheckpointMessage], limits: list[dict[str, Any]], folder: Path) -> Start:
    """The search goes on under these limits, which its training knows nothing of."""
    start, checkpoint = trained
    start = start.model_copy(update={"spec": {**start.spec, "constraints": limits}})
    return resumed(start, checkpoint, folder)


def rows(channel: RecordingChannel) -> list[CandidateRow]:
    return [row for message in channel.of_type(Candidates) for row in message.rows]


def test_widths_within_the_other_limits_are_measured_and_the_best_fast_one_wins(
    trained: tuple[Start, CheckpointMessage], measured: list[int], tmp_path: Path
) -> None:
    channel = RecordingChannel()
    result = run_job(limited(trained, fast(2.0), tmp_path), channel)
    found = rows(channel)
    within = [row for row in found if row.costs["params_m"] <= 0.02]
    assert 0 < len(within) < len(found)
    assert [("latency_ms" in row.costs) for row in found] == [row in within for row in found]
    assert {row.costs["latency_ms"] for row in within} > {2.0}
    assert [row.feasible for row in found] == [row.costs.get("latency_ms", 9) <= 2.0 for row in found]
    best = max((row for row in found if row.feasible), key=lambda row: (row.score or 0, -row.n))
    assert result.result["best"]["candidate_n"] == best.n
    told = result.result["best"]["latency_ms"]
    assert (told["measured"], told["predicted"]) == (best.costs["latency_ms"], None)
    assert measured == [round(row.costs["latency_ms"] * 10) for row in within] + [
        round(found[entry.candidate_n].costs["latency_ms"] * 10) for entry in result.accuracies
    ]


def test_an_exported_width_that_turns_out_too_slow_is_no_winner(
    trained: tuple[Start, CheckpointMessage], measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports: list[int] = []

    def first_export_is_slow(run: Callable[[], int], clock: Any) -> int:
        return 9 * MS if exports == [1] else run()

    original = NetworkMeter.measure_export

    def counted(self: NetworkMeter, folder: Path, arch: Architecture) -> Latency:
        exports.append(1)
        return original(self, folder, arch)

    monkeypatch.setattr(NetworkMeter, "measure_export", counted)
    monkeypatch.setattr("workers.latency.measure._timed", first_export_is_slow)
    result = run_job(limited(trained, fast(2.0), tmp_path), RecordingChannel())
    assert [entry.feasible for entry in result.accuracies] == [True, False]
    assert result.result["best"]["candidate_n"] == result.accuracies[0].candidate_n


class StoppingWhenMeasured(RecordingChannel):
    """Asks for a stop with the first checkpoint that holds another latency."""

    def send(self, message: TrainerMessage) -> None:
        """Look into the checkpoint."""
        super().send(message)
        if isinstance(message, CheckpointMessage) and message.binding:
            self.request_stop("pause")


def test_a_width_is_measured_once_whatever_interrupts_it(
    trained: tuple[Start, CheckpointMessage], measured: list[int], tmp_path: Path
) -> None:
    start = limited(trained, fast(2.0), tmp_path)
    for count in (1, 2):
        channel = StoppingWhenMeasured()
        with pytest.raises(StopRequested):
            run_job(start, channel)
        assert len(measured) == count
        start = resumed(start, channel.of_type(CheckpointMessage)[-1], tmp_path)
    channel = RecordingChannel()
    result = run_job(start, channel)
    before_exports = measured[: -len(result.accuracies)]
    assert len(before_exports) == len(set(before_exports))
    assert [row.costs["latency_ms"] * 10 for row in rows(channel) if "latency_ms" in row.costs] == before_exports
    # The network is announced once, by the attempt that knows all of its widths.
    assert [r.kind for c in channel.of_type(CheckpointMessage) for r in c.resources] == ["supernet"]


def test_no_width_that_is_fast_enough_ends_with_the_nearest_misses(
    trained: tuple[Start, CheckpointMessage], measured: list[int], tmp_path: Path
) -> None:
    channel = StoppingChannel()
    with pytest.raises(NoFeasibleCandidate, match=r"latency_ms at most 0\.1") as caught:
        run_job(limited(trained, fast(0.1), tmp_path), channel)
    nearest = caught.value.extra["nearest_misses"][0]
    assert nearest["costs"]["latency_ms"] == min(measured) / 10
    assert [resource.kind for resource in channel.last_checkpoint.resources] == ["supernet"]
