"""One finished search over widths that many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage_runs import TINY_SCALA, merged, search_start
from tests.unit.workers.stages.slimmable.widths import Run, run_whole

TAUGHT = merged(TINY_SCALA, {"teacher": {"train": {"epochs": 1, "batch_size": 256}}})


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder: Path = tmp_path_factory.mktemp("scala")
    return run_whole(search_start(TAUGHT, folder))


@pytest.fixture
def every_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step report, so that a run can be stopped at any of them."""
    monkeypatch.setattr("workers.stages.context.MIN_PROGRESS_INTERVAL_S", 0.0)
