from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from service.cli.failures import Exit
from service.keys.tokens import Token
from tests.unit.service.scripted import Answer, as_json, scripted_server
from tests.unit.service.test_cli import Run, run

__all__ = ["run"]  # the fixture

AGENT = {
    "name": "board",
    "alive": True,
    "seen_at": "2026-11-30T12:00:00Z",
    "info": {"host": "pi", "system": "Linux", "cores": 4, "versions": {"torch": "2.10.0"}},
}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command became."""
    found: dict[str, Any] = {}

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        found.update(path=path, arguments=arguments, environment=environment)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    return found


def test_an_agent_is_made_with_a_key_that_only_its_user_sees(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"PUT /agents/board": [as_json(AGENT, 201)]}) as server:
        assert run("agents", "add", "board", "--url", server.url) == Exit.OK
    out = capsys.readouterr().out
    sent = server.requests[0].body["key"]
    assert Token.parse(sent) is not None
    assert f"key: {sent}" in out
    assert f"vitailor device-agent --server {server.url} --name board" in out


def test_agents_are_listed_with_what_they_can(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"GET /agents": [as_json({"data": [AGENT]})]}) as server:
        assert run("agents", "list", "--url", server.url) == Exit.OK
    assert "2.10.0" in capsys.readouterr().out


def test_an_agent_is_removed(run: Run) -> None:
    with scripted_server({"DELETE /agents/board": [Answer(204, b"")]}) as server:
        assert run("agents", "remove", "board", "--url", server.url) == Exit.OK
    assert server.paths() == ["DELETE /agents/board"]


def test_the_agent_gets_its_key_where_others_cannot_read_it(run: Run, executed: dict[str, Any]) -> None:
    assert run("device-agent", "--server", "http://s", "--key", "vt_x", "--name", "board", "--threads", "2") == Exit.OK
    assert executed["arguments"] == [
        *(sys.executable, "-m", "workers.agent.main"),
        *("--url", "http://s", "--name", "board", "--device", "auto", "--threads", "2"),
    ]
    assert executed["environment"]["VITAILOR_API_KEY"] == "vt_x"


def test_the_agent_finds_a_server_of_this_machine(run: Run, executed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://here"}')
    (tmp_path / "api-key").write_text("vt_y\n")
    assert run("device-agent", "--name", "board", "--data", str(tmp_path)) == Exit.OK
    assert "http://here" in executed["arguments"]
    assert executed["environment"]["VITAILOR_API_KEY"] == "vt_y"


def test_a_build_on_an_agent_is_followed_to_its_end(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.devices._POLL_S", 0.0)
    device = {"id": "dev_1", "name": "board", "agent": "board", "job": None, "status": "measuring"}
    order = {"measured": 3, "planned": 9, "lease_until": "2026-11-30T12:00:00Z"}
    failed = {"title": "t", "status": 500, "detail": "no onnxruntime", "code": "latency_unmeasurable"}
    answers = {
        "POST /devices": [as_json({**device, "order": {**order, "lease_until": None}}, 201)],
        "GET /devices/dev_1": [
            as_json({**device, "order": order}),
            as_json({**device, "status": "failed", "error": failed}),
        ],
    }
    with scripted_server(answers) as server:
        asked = ("--space", "micro", "--on", "agent:board", "--wait")
        assert run("devices", "build", "board", *asked, "--url", server.url) == Exit.JOB_NOT_SUCCEEDED
    assert server.requests[0].body["build"]["on"] == "agent:board"
    out = capsys.readouterr().out
    assert "agent board does not work on it now: 3 of 9 networks" in out
    assert "agent board measures: 3 of 9 networks" in out
    assert "no onnxruntime" in out
