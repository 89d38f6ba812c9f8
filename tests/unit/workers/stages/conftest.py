from __future__ import annotations

import pytest


@pytest.fixture
def every_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step report, so that a run can be stopped at any of them."""
    monkeypatch.setattr("workers.stages.context.MIN_PROGRESS_INTERVAL_S", 0.0)
