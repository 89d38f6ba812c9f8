"""The command line: what it says when something goes wrong, and with which exit code it ends.

The server is scripted here; tests/e2e has the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service.cli.failures import Exit
from service.cli.main import main
from tests.unit.service.scripted import Answer, as_json, frame, problem, scripted_server, stream

JOB = {
    "id": "job_1",
    "kind": "search",
    "name": "masktas on digits",
    "status": "running",
    "done": False,
    "stage": "supernet",
    "progress": {"stage": "supernet", "fraction": 0.4, "eta_seconds": 60},
    "created_at": "2026-11-30T12:00:00Z",
}
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the command in an empty folder and returns its exit code."""
    monkeypatch.chdir(tmp_path)
    for variable in ("VITAILOR_URL", "VITAILOR_API_KEY", "VITAILOR_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)

    def run_command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["vitailor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run_command


def test_a_refused_search_tells_what_where_allowed_and_next(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"pointer": "/method", "code": "unknown", "detail": "found 'magic'", "allowed": ["masktas"]}]
    refusal = problem(422, "validation_failed", "The search is not valid.", errors=items)
    with scripted_server({"POST /search": [refusal]}) as server:
        code = run("search", "--dataset", "digits", "--method", "magic", "--url", server.url)
    assert code == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: The search is not valid.",
        "  at /method: found 'magic'",
        "     allowed: masktas",
        "next: correct what is named above; `vitailor validate` checks without starting anything",
    ]


def test_an_impossible_limit_tells_the_reachable_range(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    reach = [{"metric": "params_m", "min": 0.0441, "max": 0.5123}]
    items = [{"pointer": "/constraints/0/max", "code": "below", "detail": "no network is that small", "allowed": reach}]
    refusal = problem(422, "constraint_unsatisfiable", "params_m at most 0.001 is below.", errors=items)
    with scripted_server({"POST /search": [refusal]}) as server:
        assert run("search", "--dataset", "digits", "--max-params-m", "0.001", "--url", server.url) == Exit.REFUSED
    assert "allowed: params_m from 0.0441 to 0.5123" in capsys.readouterr().err


def test_a_broken_file_is_told_before_any_request(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search.yaml").write_text("method: [masktas\n")
    with scripted_server({}) as server:
        assert run("search", "search.yaml", "--url", server.url) == Exit.REFUSED
    assert server.requests == []
    assert "at line 2, column 1" in capsys.readouterr().err


def test_without_a_server_the_code_is_its_own(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("jobs") == Exit.NO_SERVER
    assert "next: start one with `vitailor up`" in capsys.readouterr().err


def test_a_server_that_is_gone_has_the_same_code(run: Run, tmp_path: Path) -> None:
    with scripted_server({}) as server:
        url = server.url
    data = tmp_path / ".vitailor"
    data.mkdir()
    (data / "server.json").write_text(json.dumps({"url": url}))
    assert run("jobs") == Exit.NO_SERVER


def test_server_and_key_are_found_in_the_data_folder(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with scripted_server({"GET /jobs": [as_json({"data": [], "has_more": False})]}) as server:
        (data / "server.json").write_text(json.dumps({"url": server.url}))
        (data / "api-key").write_text("vt_secret\n")
        assert run("jobs", "--data", str(data)) == Exit.OK
    assert server.requests[0].headers["authorization"] == "Bearer vt_secret"


def test_the_environment_names_server_and_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server({"GET /jobs": [as_json({"data": [], "has_more": False})]}) as server:
        monkeypatch.setenv("VITAILOR_URL", server.url)
        monkeypatch.setenv("VITAILOR_API_KEY", "vt_other")
        assert run("jobs") == Exit.OK
    assert server.requests[0].headers["authorization"] == "Bearer vt_other"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://[::1", "http://", "http://127.0.0.1:port"])
def test_an_address_that_is_none_is_refused(run: Run, capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert run("jobs", "--url", url) == Exit.REFUSED
    assert repr(url.rstrip("/")) in capsys.readouterr().err


@pytest.mark.parametrize("key", ["vt_\nb", "vt_ü", "vt_\udcff"])
def test_a_key_that_is_none_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    monkeypatch.setenv("VITAILOR_API_KEY", key)
    assert run("jobs", "--url", "http://127.0.0.1:1") == Exit.REFUSED
    assert "the API key holds characters" in capsys.readouterr().err


@pytest.mark.parametrize("proxy", ["::::", "socks5://127.0.0.1:1", "garbage://x"])
def test_a_proxy_that_cannot_be_used_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], proxy: str
) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    assert run("jobs", "--url", "http://server.invalid") == Exit.REFUSED
    assert "the proxy that the environment names" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"[]", b"{}", b"{", b"3", b"\xff"])
def test_a_broken_server_file_is_told(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "server.json").write_bytes(content)
    assert run("jobs", "--data", str(tmp_path)) == Exit.REFUSED


def test_a_broken_key_file_is_told(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "api-key").write_bytes(b"\xff")
    assert run("jobs", "--data", str(tmp_path), "--url", "http://127.0.0.1:1") == Exit.REFUSED
    assert "api-key cannot be read" in capsys.readouterr().err


def test_settings_that_contradict_each_other_are_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITAILOR_LEASE_S", "1")
    monkeypatch.setenv("VITAILOR_HEARTBEAT_S", "10")
    assert run("up") == Exit.REFUSED
    assert capsys.readouterr().err.startswith("error: heartbeat_s 10 must be at most half of lease_s 1")


def test_a_wrong_key_says_where_keys_come_from(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"GET /jobs": [problem(401, "unauthorized", "The key is unknown.")]}) as server:
        assert run("jobs", "--url", server.url) == Exit.REFUSED
    assert "VITAILOR_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["search"], ["search", "--seed", "many"], ["download"], ["jobs", "--limit", "0"], ["no-such-command"]]
)
def test_wrong_usage_is_refused(run: Run, arguments: list[str]) -> None:
    assert run(*arguments) == Exit.REFUSED


def test_a_setting_that_is_not_usable_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VITAILOR_PORT", "99999")
    assert run("jobs") == Exit.REFUSED
    assert "VITAILOR_PORT" in capsys.readouterr().err


def test_a_search_prints_its_id_and_what_comes_next(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"POST /search": [as_json(JOB, 202)]}) as server:
        assert run("search", "--dataset", "digits", "--method", "masktas", "--url", server.url) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "job_1"
    assert "vitailor job job_1 --wait" in lines[1]
    assert server.requests[0].body == {"method": "masktas", "dataset": "digits"}


WINNER = {
    "id": "arch_1_0",
    "n": 0,
    "generation": 0,
    "score": -0.1,
    "costs": {"params_m": 0.1, "gmacs": 0.001},
    "feasible": True,
    "on_front": True,
    "rank": 0,
    "accuracy": {"val": 0.97, "holdout": 0.96},
}


def waiting(status: str, **more: Any) -> dict[str, list[Answer]]:
    ended = {**JOB, "status": status, "done": True, **more}
    return {
        "POST /search": [as_json(JOB, 202)],
        "GET /jobs/job_1/events": [stream(frame(1, "job.status", {"status": status}), frame(2, "end", {}))],
        "GET /jobs/job_1": [as_json(ended)],
        "GET /jobs/job_1/pareto": [as_json({"data": [WINNER]})],
        "GET /jobs/job_1/candidates": [as_json({"data": [WINNER], "has_more": False})],
    }


@pytest.mark.parametrize("flags", [[], ["--all"]])
def test_a_folder_that_cannot_be_written_is_told(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    (tmp_path / "file").touch()
    artifact = {"id": "art_1", "name": "model.py", "kind": "code", "size_bytes": 1, "sha256": "0" * 64}
    files = {"data": [{**artifact, "media_type": "text/x-python", "architecture": "arch_1_0"}], "has_more": False}
    routes = waiting("succeeded") | {"GET /jobs/job_1/artifacts": [as_json(files)]}
    with scripted_server(routes) as server:
        assert run("download", "job_1", "--out", "file", *flags, "--url", server.url) == Exit.REFUSED
    assert "cannot be written: " in capsys.readouterr().err


def test_waiting_for_a_job_that_succeeds_ends_well(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(waiting("succeeded")) as server:
        assert run("search", "--dataset", "digits", "--wait", "--url", server.url) == Exit.OK
    assert "winner: arch_1_0" in capsys.readouterr().out


def test_waiting_for_a_job_that_fails_tells_why(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"type": "urn:x", "title": "Training diverged", "status": 500, "detail": "The loss is NaN.", "code": "x"}
    with scripted_server(waiting("failed", error=error)) as server:
        assert run("search", "--dataset", "digits", "--wait", "--url", server.url) == Exit.JOB_NOT_SUCCEEDED
    assert "The loss is NaN." in capsys.readouterr().out


def test_waiting_for_a_job_that_is_cancelled_is_no_success(run: Run) -> None:
    with scripted_server(waiting("cancelled")) as server:
        assert run("job", "job_1", "--wait", "--url", server.url) == Exit.JOB_NOT_SUCCEEDED


def test_jobs_are_listed_whole_without_a_terminal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    page = {"data": [{**JOB, "id": "job_" + "0" * 32}], "has_more": False}
    with scripted_server({"GET /jobs": [as_json(page)]}) as server:
        assert run("jobs", "--url", server.url) == Exit.OK
    out = capsys.readouterr().out
    assert "job_" + "0" * 32 in out
    assert "supernet 40%" in out


def test_the_age_of_a_job_counts_days(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    created_at = datetime.now(UTC) - timedelta(days=2, hours=1)
    page = {"data": [{**JOB, "created_at": created_at.isoformat()}], "has_more": False}
    with scripted_server({"GET /jobs": [as_json(page)]}) as server:
        assert run("jobs", "--url", server.url) == Exit.OK
    assert "2 d 1 h" in capsys.readouterr().out


def test_json_output_is_the_whole_document(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"GET /jobs/job_1": [as_json({**JOB, "unknown": [1]})]}) as server:
        assert run("job", "job_1", "--json", "--url", server.url) == Exit.OK
    assert json.loads(capsys.readouterr().out)["unknown"] == [1]


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "retry"])
def test_actions_ask_the_server(run: Run, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({f"POST /jobs/job_1/{action}": [as_json(JOB, 202)]}) as server:
        assert run(action, "job_1", "--url", server.url) == Exit.OK
    assert server.paths() == [f"POST /jobs/job_1/{action}"]
    assert capsys.readouterr().out == "job_1  running\n"


def test_replay_names_the_new_job(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    new = as_json({**JOB, "id": "job_2", "status": "queued"}, 202)
    with scripted_server({"POST /jobs/job_1/replay": [new]}) as server:
        assert run("replay", "job_1", "--url", server.url) == Exit.OK
    assert capsys.readouterr().out == "job_2  queued  does what job_1 does\n"


def test_extend_sends_the_totals_that_were_given(run: Run) -> None:
    with scripted_server({"POST /jobs/job_1/extend": [as_json(JOB, 202)]}) as server:
        assert run("extend", "job_1", "--generations", "40", "--url", server.url) == Exit.OK
    assert [request.body for request in server.requests] == [{"generations": 40}]


def test_extend_names_the_job_that_goes_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    new = as_json({**JOB, "id": "job_2", "status": "queued"}, 201)
    with scripted_server({"POST /jobs/job_1/extend": [new]}) as server:
        assert run("extend", "job_1", "--generations", "40", "--url", server.url) == Exit.OK
    assert capsys.readouterr().out == "job_2  queued  goes on where job_1 ended\n"


def test_events_are_printed_as_json_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    page = {"data": [{"id": 1, "type": "metric", "at": "2026-11-30T12:00:00Z", "data": {"loss": 1.5}}]}
    with scripted_server({"GET /jobs/job_1/events": [as_json(page)]}) as server:
        assert run("events", "job_1", "--json", "--url", server.url) == Exit.OK
    assert json.loads(capsys.readouterr().out)["data"] == {"loss": 1.5}


def test_the_command_line_imports_no_torch() -> None:
    code = "import sys, service.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_that_are_no_teacher_are_told_key_by_key(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    misshapen = [{"name": "norm.bias", "found": [5], "expected": [32]}]
    keys = {"missing": ["cls_token"], "unexpected": ["rope.freqs"], "misshapen": misshapen}
    refusal = problem(422, "teacher_invalid", "The tensors are not those of a ViT.", keys=keys)
    with scripted_server({"POST /teachers": [refusal]}) as server:
        code = run("teachers", "add", "odd.safetensors", "--num-heads", "4", "--url", server.url)
    assert code == Exit.REFUSED
    assert capsys.readouterr().err.splitlines()[1:4] == [
        "  missing: cls_token",
        "  unexpected: rope.freqs",
        "  misshapen: norm.bias is [5], expected [32]",
    ]


def test_registering_a_teacher_waits_for_its_id(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    queued = {**JOB, "kind": "teacher_import", "name": "teacher MAE", "status": "queued", "stage": None}
    done = {**queued, "status": "succeeded", "done": True, "result": {"teacher": "tch_1"}}
    answers = {
        "POST /teachers": [as_json(queued, 202)],
        "GET /jobs/job_1": [as_json(done)],
        "GET /jobs/job_1/events": [stream(frame(1, "end", {"status": "succeeded"}))],
    }
    with scripted_server(answers) as server:
        code = run("teachers", "add", "--timm", "vit_base_patch16_224.mae", "--wait", "--url", server.url)
    assert code == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1] == "teacher: tch_1"


@pytest.mark.parametrize("arguments", [[], ["weights.pth", "--timm", "vit_base_patch16_224.mae"]], ids=str)
def test_a_teacher_comes_from_one_place(run: Run, arguments: list[str]) -> None:
    with scripted_server({}) as server:
        assert run("teachers", "add", *arguments, "--url", server.url) == Exit.REFUSED
    assert server.requests == []
