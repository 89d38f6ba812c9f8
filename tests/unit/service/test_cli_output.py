"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from service.cli.output import candidates_table, duration, estimate, jobs_table, number, percent, ranking_table
from service.client import Candidate, Job


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 0 s"),
        (3_599.6, "1 h 0 min"),
        (86_399, "23 h 59 min"),
        (90_000, "1 d 1 h"),
        (8_640_000, "100 d 0 h"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_missing_figures_are_dashes() -> None:
    assert (number(None, 3), percent(None)) == ("-", "-")
    assert (number(0.12345, 3), percent(0.95)) == ("0.123", "95.00%")


def shown(table: object) -> list[str]:
    console = Console(width=160, record=True, markup=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_jobs_show_their_age_over_days() -> None:
    created = datetime.now(UTC) - timedelta(days=2, hours=3, minutes=5)
    job = Job(id="job_1", kind="search", status="running", done=False, created_at=created)
    assert shown(jobs_table([job]))[1].split() == ["job_1", "running", "2", "d", "3", "h"]


def test_candidates_are_listed_from_the_cheapest() -> None:
    def candidate(n: int, gmacs: float) -> Candidate:
        costs = {"params_m": 0.1, "gmacs": gmacs}
        return Candidate(id=f"arch_{n}", n=n, generation=0, costs=costs, feasible=True, on_front=True, score=-0.5)

    lines = shown(candidates_table([candidate(1, 0.3), candidate(2, 0.1)]))
    assert [line.split()[0] for line in lines[1:]] == ["arch_2", "arch_1"]


def test_measures_are_shown_with_their_intervals_the_best_first() -> None:
    def row(name: str, tau: float | None) -> dict[str, Any]:
        figure = None if tau is None else {"value": tau, "low": tau - 0.1, "high": tau + 0.1}
        return {"name": name, "kendall": figure, "spearman": figure, "gain_over_params": None}

    rows = [row("consistency", 0.3), row("width", None), row("feature", -0.5), row("fused", 0.7)]
    lines = shown(ranking_table({"truth": "accuracy", "networks": 12, "measures": rows}))
    names = ["fused", "consistency", "feature", "width"]
    found = [name for line in lines for name in names if line.split()[:1] == [name]]
    assert found == names
    assert "accuracy, 12 networks" in lines[0]
    assert estimate(row("fused", 0.7)["kendall"]) == "0.70 [0.60, 0.80]"
