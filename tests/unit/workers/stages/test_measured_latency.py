"""A limit on latency that is measured while the search runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from models.architecture import Architecture
from service.errors import NoFeasibleCandidate
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, kept_rows, run_until
from workers.protocol import CandidateRow, Candidates, CheckpointMessage
from workers.stages.latency_limit import LatencyLimit
from workers.stages.run import run_job

BODY = merged(TINY, {"search": {"baseline": "random"}})


class FakeMeter:
    """A clock that never repeats: the same network takes another time whenever it is measured."""

    def __init__(self) -> None:
        self.asked: list[Architecture] = []
        self._ticks: Iterator[int] = count()

    def measure(self, arch: Architecture) -> float:
        """One millisecond a block, and noise."""
        self.asked.append(arch)
        return arch.depth + 0.001 * next(self._ticks)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> FakeMeter:
    """Of every search of the test, whose networks may have one block only."""
    return limited(monkeypatch, high=1.9)


def limited(monkeypatch: pytest.MonkeyPatch, **limits: float) -> FakeMeter:
    meter = FakeMeter()
    monkeypatch.setattr("workers.stages.run.candidates_limit", lambda ctx: LatencyLimit(meter, **limits))
    return meter


def rows(*channels: StoppingChannel) -> list[CandidateRow]:
    return [row for channel in channels for batch in channel.of_type(Candidates) for row in batch.rows]


def test_a_proposal_beyond_the_limit_is_told_as_not_feasible(meter: FakeMeter, tmp_path: Path) -> None:
    channel = run_until(search_start(BODY, tmp_path), StopAt("retrain"))
    found = rows(channel)
    assert {row.feasible for row in found} == {True, False}
    for row in found:
        assert row.feasible == (row.costs["latency_ms"] <= 1.9) == (row.genotype[0] == 1) == (row.score is not None)
        assert bool(row.scores["consistency"]) == row.feasible
    search = channel.last_checkpoint.state["outputs"]["search"]
    feasible = {row.n for row in found if row.feasible}
    assert {entry["n"] for entry in search["best"]} | set(search["front"]) <= feasible
    assert all(entry["costs"]["latency_ms"] <= 1.9 for entry in search["best"])
    assert {arch.num_classes for arch in meter.asked} == {10}
    assert len(meter.asked) == len({arch.genotype for arch in meter.asked})


@pytest.mark.usefixtures("every_progress", "meter")
def test_what_was_measured_is_in_a_checkpoint_before_the_search_is_told(tmp_path: Path) -> None:
    start = search_start(BODY, tmp_path, checkpoint_s=1e9)
    channel = run_until(start, StopAt("retrain"))
    saved: dict[tuple[float, ...], float] = {}
    for message in channel.messages:
        if isinstance(message, CheckpointMessage) and message.stage == "search" and message.binding:
            saved |= {tuple(genes): ms for genes, ms in kept_rows(start, message)["latency"]}
        if isinstance(message, Candidates):
            assert all(saved[tuple(row.genotype)] == row.costs["latency_ms"] for row in message.rows)
    assert saved


@pytest.mark.usefixtures("every_progress", "meter")
def test_a_resumed_search_keeps_what_was_measured(tmp_path: Path) -> None:
    start = search_start(BODY, tmp_path)
    first = run_until(start, StopAt("search", 0.3))
    second = run_until(resumed(start, first.last_checkpoint, tmp_path), StopAt("retrain"))
    known = {tuple(genes): ms for genes, ms in kept_rows(start, first.last_checkpoint)["latency"]}
    kept = [row for row in rows(second) if tuple(row.genotype) in known]
    assert kept
    assert all(known[tuple(row.genotype)] == row.costs["latency_ms"] for row in kept)


def test_a_limit_that_nothing_meets_ends_with_the_nearest_misses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch, high=0.5)
    with pytest.raises(NoFeasibleCandidate, match="measured on the worker") as caught:
        run_job(search_start(BODY, tmp_path), StoppingChannel())
    misses = [miss["costs"]["latency_ms"] for miss in caught.value.extra["nearest_misses"]]
    assert misses == sorted(misses)
    assert len(misses) == 3
    assert all(1 <= latency < 2 for latency in misses)
