from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli.failures import Exit
from tests.unit.service.scripted import Answer, as_json, scripted_server
from tests.unit.service.test_cli import Run, run

__all__ = ["run"]  # the fixture

TABLE = {"schema_version": 1, "device": "bench", "fixed_ns": [[48, 1]]}
DEVICE = {"id": "dev_1", "name": "board", "status": "ready", "error_share": 0.0213, "setting": {"device": "bench"}}


def test_the_list_shows_how_far_predictions_are_off(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server({"GET /devices": [as_json({"data": [DEVICE]})]}) as server:
        assert run("devices", "list", "--url", server.url) == Exit.OK
    assert "2.13%" in capsys.readouterr().out


def test_a_table_goes_up_and_comes_down_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text(json.dumps(TABLE))
    answers = {"POST /devices": [as_json(DEVICE, 201)], "GET /devices/dev_1/table": [as_json(TABLE)]}
    with scripted_server(answers) as server:
        assert run("devices", "upload", str(tmp_path / "board.json"), "--url", server.url) == Exit.OK
        assert run("devices", "download", "dev_1", "--out", str(tmp_path / "b.json"), "--url", server.url) == Exit.OK
    assert server.requests[0].body == {"name": "board", "table": TABLE, "build": None}
    assert json.loads((tmp_path / "b.json").read_text()) == TABLE


@pytest.mark.parametrize("content", ["no json", "[]", None])
def test_a_file_that_is_no_table_is_refused_before_anything_is_sent(
    run: Run, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "board.json"
    if content is not None:
        path.write_text(content)
    with scripted_server({}) as server:
        assert run("devices", "upload", str(path), "--url", server.url) == Exit.REFUSED
    assert server.requests == []


def test_a_build_sends_what_was_said_and_nothing_else(run: Run) -> None:
    with scripted_server({"POST /devices": [as_json({**DEVICE, "status": "waiting"}, 201)]}) as server:
        asked = ("--space", "micro", "--img-size", "8", "--runtime", "onnxruntime")
        assert run("devices", "build", "here", *asked, "--url", server.url) == Exit.OK
    assert server.requests[0].body == {
        "name": "here",
        "table": None,
        "build": {"space": {"preset": "micro", "img_size": 8}, "runtime": "onnxruntime"},
    }


def test_a_deletion_has_no_answer(run: Run) -> None:
    with scripted_server({"DELETE /devices/dev_1": [Answer(204, b"")]}) as server:
        assert run("devices", "delete", "dev_1", "--url", server.url) == Exit.OK
    assert server.paths() == ["DELETE /devices/dev_1"]
