from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.templates import parity_probe


@pytest.fixture
def every_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step report, so that a run can be stopped at any of them."""
    monkeypatch.setattr("workers.stages.context.MIN_PROGRESS_INTERVAL_S", 0.0)


@pytest.fixture
def proofs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prove exports in this process, for tests of something else: a process of its own takes seconds to start."""

    def probe(folder: Path, exchange: Path, timeout_s: float) -> str:
        return json.dumps(parity_probe.probe(folder, exchange))

    monkeypatch.setattr("models.export._run_probe", probe)
