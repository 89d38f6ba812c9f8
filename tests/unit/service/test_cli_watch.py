"""What is shown of a job that is followed."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from service.cli.watch import LiveDisplay, PlainDisplay, View, make_display
from service.client import Event

COSTS = {"params_m": 0.05, "gmacs": 0.002}


def event(kind: str, **data: Any) -> Event:
    return Event(id=1, type=kind, data=data)


def candidates(evaluated: int, *best: tuple[int, float]) -> Event:
    rows = [{"n": n, "score": score, "costs": COSTS} for n, score in best]
    return event("candidate", generation=0, evaluated=evaluated, best=rows)


def seen(*events: Event) -> View:
    view = View()
    for one in events:
        view.take(one)
    return view


def test_a_stage_that_begins_completes_those_before_it() -> None:
    view = seen(
        event("stage.progress", stage="data", fraction=0.5, eta_seconds=None),
        event("stage.progress", stage="teacher", fraction=0.1, eta_seconds=60.0),
    )
    assert view.stages == {"data": 1.0, "teacher": 0.1}
    assert view.eta_seconds == 60.0


def test_the_best_is_the_highest_score_of_all_events() -> None:
    view = seen(candidates(2, (0, -0.3)), candidates(3, (2, -0.2)), candidates(4))
    assert view.best is not None
    assert view.best["n"] == 2
    assert view.evaluated == 4


def test_the_summary_tells_status_time_left_and_best() -> None:
    view = seen(
        event("job.status", status="running"),
        event("stage.progress", stage="search", fraction=0.5, eta_seconds=80.0),
        candidates(1, (0, -0.25)),
    )
    assert view.summary() == (
        "running; about 1 min 20 s left; 1 networks scored, best -0.25000 with 0.0500 M parameters, 0.00200 GMACs"
    )


def test_events_of_unknown_types_are_ignored() -> None:
    assert seen(event("something.new", x=1)) == View()


def test_without_a_terminal_there_is_a_line_at_each_quarter() -> None:
    written = io.StringIO()
    display = make_display(Console(file=written, width=200, markup=False))
    assert isinstance(display, PlainDisplay)
    view = View()
    with display:
        for percent in range(101):
            view.take(event("stage.progress", stage="supernet", fraction=percent / 100, eta_seconds=None))
            display.show(view)
        view.take(event("warning", code="w", detail="few images"))
        display.show(view)
    lines = written.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[1:6]] == [["supernet", f"{p}%"] for p in (0, 25, 50, 75, 100)]
    assert lines[6:] == ["warning: few images"]


def test_on_a_terminal_there_are_bars() -> None:
    written = io.StringIO()
    display = make_display(Console(file=written, width=100, force_terminal=True, markup=False))
    assert isinstance(display, LiveDisplay)
    view = seen(event("job.status", status="running"), event("stage.progress", stage="teacher", fraction=0.5))
    with display:
        display.show(view)
    assert "teacher" in written.getvalue()
    assert "50 %" in written.getvalue()
