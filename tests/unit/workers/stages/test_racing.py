"""Racing in a search: less is looked at, and the best are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, run_until
from workers.protocol import CandidateRow, Candidates
from workers.stages.context import Json
from workers.stages.scoring import LOOKS

Searched = tuple[dict[int, CandidateRow], Json]

MANY = {"population": 10, "parents": 3, "baseline": "random"}
RACED = {"images": 200, "batch_size": 40, "companions": False, "racing": 0.05}


def search(folder: Path, *stops: StopAt, **evaluation: Any) -> Searched:
    """Candidates by number, and the outputs of the search."""
    start = search_start(merged(TINY, {"search": {**MANY, "evaluation": {**RACED, **evaluation}}}), folder)
    rows: dict[int, CandidateRow] = {}
    for stop in [*stops, StopAt("retrain")]:
        channel = run_until(start, stop)
        rows |= {row.n: row for batch in channel.of_type(Candidates) for row in batch.rows}
        start = resumed(start, channel.last_checkpoint, folder)
    return rows, channel.last_checkpoint.state["outputs"]["search"]


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    return search(tmp_path_factory.mktemp("raced"))


def test_the_search_and_its_best_are_those_of_full_measures(raced: Searched, tmp_path: Path) -> None:
    (rows, found), (full_rows, full) = raced, search(tmp_path, racing=None)
    assert [row.genotype for row in rows.values()] == [row.genotype for row in full_rows.values()]
    assert [entry["n"] for entry in found["best"]] == [entry["n"] for entry in full["best"]]
    dropped = [n for n, row in rows.items() if LOOKS in row.scores]
    assert len(dropped) == found["raced_out"] > 0
    assert full["raced_out"] == 0
    for n, row in rows.items():
        assert row.score is None if n in dropped else row.score == pytest.approx(full_rows[n].score, rel=1e-4)


def test_a_dropped_candidate_says_on_how_much_it_was_measured_and_ranks_nowhere(raced: Searched) -> None:
    rows, found = raced
    dropped = [row for row in rows.values() if LOOKS in row.scores]
    assert dropped
    for row in dropped:
        assert row.score is None
        assert row.scores[LOOKS] in {40, 80, 120, 160}
        assert row.scores["consistency"] < 0
        assert row.n not in found["front"]
        assert row.generation > 0


@pytest.mark.usefixtures("every_progress")
def test_an_interrupted_race_ends_the_same(raced: Searched, tmp_path: Path) -> None:
    assert search(tmp_path, StopAt("search", 0.2), StopAt("search", 0.35)) == raced
