"""``vitailor demo``: what it promises, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.embedded.folder import processes_of
from tests.e2e.commands import COMMAND
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def data() -> Iterator[Path]:
    # Not pytest's own temporary folder: as root, the servers' account could not enter it.
    with tempfile.TemporaryDirectory(prefix="vitailor-e2e-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder) / "data"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_keeps_its_promises_and_leaves_nothing_running(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "winner"
    run = subprocess.run(
        [COMMAND, "demo", "--data", str(data), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "FAIL" not in run.stdout
    assert "Pareto front" in run.stdout
    document = json.loads((out / "architecture.json").read_text())
    assert document["accuracy"]["holdout"] >= 0.95
    assert processes_of(data) == []


def test_ctrl_c_stops_the_demo_and_everything_that_it_started(data: Path, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [COMMAND, "demo", "--data", str(data), "--out", str(tmp_path / "winner")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    wait_until(lambda: (data / "server.json").exists(), "the demo's server is up", limit_s=60)
    assert processes_of(data) != []
    demo.send_signal(signal.SIGINT)
    told, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "nothing is left running" in told
    assert processes_of(data) == []
    assert not (data / "server.json").exists()
