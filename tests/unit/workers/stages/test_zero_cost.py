from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, run_until
from workers.protocol import CheckpointMessage
from workers.stages.run import run_job
from workers.stages.zero_cost import best_of, log_ranks

SEED = {"embed_dim": 16, "depth": 1, "num_heads": [1], "mlp_ratio": [1.0]}


def test_parts_are_fused_by_ranks_so_that_no_unit_counts() -> None:
    figures = [[1.0, 500.0], [2.0, 100.0], [3.0, 900.0]]
    assert list(log_ranks(figures)) == pytest.approx([math.log(2 / 9), math.log(2 / 9), 0.0])
    assert list(log_ranks([[x, y * 1e6] for x, y in figures])) == pytest.approx(list(log_ranks(figures)))
    assert best_of([(1,), (2,), (3,)], figures) == [(3,), (1,), (2,)]


def body(**search: Any) -> dict[str, Any]:
    return merged(TINY, {"search": {"generations": 1, **search}})


def _searching(channel: RecordingChannel) -> Any:
    """The search in the first checkpoint that knows the first generation, which is still to be scored."""
    states = (message.state["state"] for message in channel.of_type(CheckpointMessage))
    return next(state["search"]["state"] for state in states if "search" in state)


def _first_generation(search: Any) -> list[list[float]]:
    return [genes for _, genes in search["pending"]]


def test_promising_networks_end_the_first_generation_whatever_interrupts_their_choice(tmp_path: Path) -> None:
    asked = body(
        population_from={"architectures": [SEED], "share": 0.2},
        warm_start_zero_cost={"measure": "az_nas", "candidates": 8, "images": 2},
    )
    start = search_start(asked, tmp_path, checkpoint_s=0.0)
    channel = run_until(start, StopAt("retrain"))
    between = next(m for m in channel.of_type(CheckpointMessage) if "zero_cost" in m.state["state"])
    assert len(between.state["state"]["zero_cost"]) < 8
    again = run_until(resumed(start, between, tmp_path), StopAt("retrain"))
    search = _searching(channel)
    first = _first_generation(search)
    assert _first_generation(_searching(again)) == first
    assert search["random_first"] == 3
    assert first[3] == [1, 1.0, 1, 16]  # the named one goes before those that were chosen


@pytest.mark.usefixtures("proofs_here")
def test_the_report_tells_how_well_the_measure_ranks(tmp_path: Path) -> None:
    channel = RecordingChannel()
    asked = body(warm_start_zero_cost={"measure": "dss", "candidates": 8})
    result = run_job(search_start(asked, tmp_path), channel).result
    names = [row["name"] for row in result["rank_correlation"]["measures"]]
    assert names[-1] == "dss"
    assert result["rank_correlation"]["networks"] == 3  # the random ones alone
