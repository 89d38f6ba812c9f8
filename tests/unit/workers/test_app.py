"""The worker process's own face: what it serves, and what it must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.settings import Settings
from workers.app import UnknownQueue, worker_queues


def test_queues_of_the_settings() -> None:
    assert worker_queues(Settings(_env_file=None, queues="gpu, cpu")) == ["gpu", "cpu"]


@pytest.mark.parametrize("queues", ["", " , ", "cpus", "cpu,gpus"])
def test_unknown_queues_are_refused_with_the_known_ones(queues: str) -> None:
    with pytest.raises(UnknownQueue, match="cpu, gpu"):
        worker_queues(Settings(_env_file=None, queues=queues))


@pytest.mark.parametrize("module", ["workers.main", "service.jobs.relay", "workers.trainer"])
def test_no_process_but_a_running_trainer_loads_torch(module: str) -> None:
    """A trainer loads it too, but only after it has begun to listen to its supervisor."""
    code = f"import sys, {module}; print([name for name in ('torch', 'timm', 'numpy') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
