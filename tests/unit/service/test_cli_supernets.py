"""Commands about supernets: what they send, and what they show of the answer.

The server is scripted here; tests/e2e has the real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from service.cli.failures import Exit
from tests.unit.service.scripted import as_json, frame, problem, scripted_server, stream
from tests.unit.service.test_cli import Run, run

__all__ = ["run"]  # the fixture

WIDTH = {
    "ratio": 0.625,
    "width": 60,
    "head_dim": 20,
    "accuracy": 0.9,
    "interpolated": True,
    "offered": False,
    "params_m": 0.178,
    "gmacs": 0.003,
}
SUPERNET: dict[str, Any] = {
    "id": "sn_1",
    "job": "job_1",
    "method": "scala",
    "digest": "ab" * 32,
    "space": {},
    "info": {},
    "widths": [WIDTH],
}
SHARED = {**SUPERNET, "id": "sn_2", "method": "masktas", "widths": []}


def job(kind: str, result: dict[str, Any] | None = None) -> dict[str, Any]:
    status = "queued" if result is None else "succeeded"
    return {
        "id": "job_2",
        "kind": kind,
        "status": status,
        "done": result is not None,
        "created_at": "2026-11-30T12:00:00Z",
        "result": result,
    }


def test_supernets_are_listed_with_how_many_widths_they_offer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    page = as_json({"data": [SUPERNET, SHARED], "has_more": False})
    with scripted_server({"GET /supernets": [page]}) as server:
        assert run("supernets", "list", "--url", server.url) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["sn_1", "scala", "1", "0", "-", "job_1"]
    assert lines[2].split() == ["sn_2", "masktas", "-", "-", "-", "job_1"]


def test_a_width_is_shown_with_costs_and_whether_it_is_offered(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"GET /supernets/sn_1": [as_json(SUPERNET)]}) as server:
        assert run("supernets", "show", "sn_1", "--url", server.url) == Exit.OK
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split() == ["60", "0.6250", "0.1780", "0.00300", "90.00%", "no", "no"]


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (["extract", "sn_1", "--width", "60"], "/supernets/sn_1/extract", {"width": 60}),
        (
            ["extract", "sn_1", "--max-params-m", "0.2", "--max-latency-ms", "3", "--batch-size", "8"],
            "/supernets/sn_1/extract",
            {"max_params_m": 0.2, "max_latency_ms": 3.0, "batch_size": 8},
        ),
        (
            ["extract", "sn_1", "--max-weight-mb", "0.5", "--max-peak-mem-mb", "0.7"],
            "/supernets/sn_1/extract",
            {"max_weight_mb": 0.5, "max_peak_mem_mb": 0.7},
        ),
        (
            ["import", "a.pth", "--smallest", "0.25", "--step", "0.0625", "--dataset", "digits"],
            "/supernets/import",
            {"path": "a.pth", "smallest": 0.25, "step": 0.0625, "dataset": "digits"},
        ),
        (
            ["transfer", "sn_1", "--dataset", "digits", "--neighbours", "5"],
            "/supernets/sn_1/transfer",
            {"dataset": "digits", "k": 5},
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_sends_what_it_was_told_and_prints_the_job(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], path: str, body: dict[str, Any]
) -> None:
    with scripted_server({f"POST {path}": [as_json(job("extract"), 202)]}) as server:
        assert run("supernets", *arguments, "--url", server.url) == Exit.OK
    assert server.requests[0].body == body
    assert capsys.readouterr().out == "job_2\n"


def test_an_extraction_that_says_nothing_asks_for_no_server(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("supernets", "extract", "sn_1") == Exit.REFUSED
    assert "next: `vitailor supernets show sn_1` lists the widths" in capsys.readouterr().err


def test_an_unknown_width_tells_those_that_there_are(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"pointer": "/width", "code": "unknown_width", "detail": "width 61: none", "allowed": [24, 60]}]
    refusal = problem(422, "unknown_width", "width 61: there is no such width.", errors=items)
    with scripted_server({"POST /supernets/sn_1/extract": [refusal]}) as server:
        assert run("supernets", "extract", "sn_1", "--width", "61", "--url", server.url) == Exit.REFUSED
    assert "allowed: 24, 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "result", "said"),
    [
        ("supernet_import", {"supernet": "sn_1"}, "supernet: sn_1"),
        (
            "extract",
            {"width": 60, "costs": {"params_m": 0.178, "gmacs": 0.003}, "accuracy": None},
            "width: 60, 0.1780 M parameters, 0.00300 GMACs, accuracy - on validation",
        ),
        (
            "transfer",
            {
                "dataset": "digits",
                "images": {"train": 10, "val": 5},
                "k": 5,
                "widths": [{**WIDTH, "linear_probe": 0.5, "knn": 0.25}],
            },
            "60     0.6250  50.00%        25.00%",
        ),
    ],
    ids=["supernet_import", "extract", "transfer"],
)
def test_the_end_of_a_job_tells_its_result(
    run: Run, capsys: pytest.CaptureFixture[str], kind: str, result: dict[str, Any], said: str
) -> None:
    answers = {
        "GET /jobs/job_2": [as_json(job(kind, result))],
        "GET /jobs/job_2/events": [stream(frame(1, "job.status", {"status": "succeeded"}), frame(2, "end", {}))],
    }
    with scripted_server(answers) as server:
        assert run("job", "job_2", "--wait", "--url", server.url) == Exit.OK
    assert said in [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_valid_slimmable_body_tells_how_many_widths_are_within_the_limits(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {
        "feasible": {"architectures": 13, "space_size": 25},
        "reachable": [],
        "warnings": [],
        "widths": [WIDTH],
    }
    with scripted_server({"POST /search/validate": [as_json(answer)]}) as server:
        assert run("validate", "--dataset", "digits", "--method", "scala", "--url", server.url) == Exit.OK
    assert capsys.readouterr().out.splitlines()[0] == "valid: 13 of 25 widths meet all limits"
    assert server.requests[0].body == {"dataset": "digits", "method": "scala"}
