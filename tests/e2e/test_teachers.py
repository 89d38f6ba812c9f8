"""Weights on the server become a teacher, and a search learns from it, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from service.client import Client
from service.embedded import Embedded
from tests.e2e.commands import run
from tests.published_files import HEADS, mae_full
from tests.stage_runs import TINY, merged

pytestmark = pytest.mark.e2e


def test_a_published_file_teaches_a_search(
    stack: Embedded, cli_environment: dict[str, str], client: Client, tmp_path: Path
) -> None:
    root = stack.settings.import_root
    assert root is not None
    torch.save({"model": mae_full().state}, root / "weights.pth")
    added = run(cli_environment, "teachers", "add", "weights.pth", "--num-heads", str(HEADS), "--wait")
    assert added.returncode == 0, added.stdout + added.stderr
    job = client.job(added.stdout.split()[0])
    teacher = (job.result or {})["teacher"]
    assert f"teacher: {teacher}" in added.stdout
    assert [warning.code for warning in job.warnings] == ["teacher_licence"]
    assert teacher in run(cli_environment, "teachers", "list").stdout
    shown = json.loads(run(cli_environment, "teachers", "show", teacher).stdout)
    assert (shown["info"]["kind"], shown["job"]) == ("mae", job.id)

    spec = merged(TINY, {"retrain": {"mode": "none"}, "teacher": {"pretrain": None, "id": teacher}})
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(spec))
    searched = run(cli_environment, "search", str(tmp_path / "search.yaml"), "--wait")
    assert searched.returncode == 0, searched.stdout + searched.stderr
    [found] = client.jobs(kind="search", limit=1)
    assert (found.result or {})["digests"]["teacher"] == shown["digest"]
    assert {warning.code for warning in found.warnings} >= {"teacher_licence", "teacher_resampled"}
