"""The whole service as ``vitailor up`` runs it, and one finished search on it that many tests look at."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.cli.specfile import read_spec
from service.client import Candidate, Client, Event, Job
from service.embedded import Embedded
from service.settings import Settings

QUICK = Path(__file__).parents[2] / "examples" / "digits-quick.yaml"


@dataclass(frozen=True)
class Finished:
    """A search that has ended, with its events as they came over the stream."""

    spec: dict[str, Any]
    job: Job
    events: list[Event]
    winner: Candidate

    @property
    def most_parameters(self) -> int:
        [limit] = [c["max"] for c in self.job.spec["constraints"] if c["metric"] == "params_m"]
        return round(limit * 1_000_000)


@pytest.fixture(scope="session")
def stack() -> Iterator[Embedded]:
    # Not pytest's own temporary folder: as root, the servers' account could not enter it.
    with tempfile.TemporaryDirectory(prefix="vitailor-e2e-") as folder:
        Path(folder).chmod(0o711)
        imports = Path(folder) / "imports"
        imports.mkdir()
        settings = Settings(
            _env_file=None,
            data_dir=Path(folder) / "data",
            import_root=imports,
            port=0,
            trainer_threads=1,
            calibrate=False,
        )
        with Embedded(settings, durable=False) as running:
            yield running


@pytest.fixture
def client(stack: Embedded) -> Iterator[Client]:
    with Client(stack.url, stack.api_key) as client:
        yield client


@pytest.fixture(scope="session")
def finished(stack: Embedded) -> Finished:
    spec = read_spec(QUICK)
    with Client(stack.url, stack.api_key) as client:
        job = client.search(spec)
        events = list(client.follow(job.id))
        job = client.job(job.id)
        assert job.status == "succeeded", job.error
        [winner] = [candidate for candidate in client.candidates(job.id) if candidate.rank == 0]
        return Finished(spec, job, events, winner)


@pytest.fixture
def cli_environment(stack: Embedded) -> dict[str, str]:
    """What a user's shell has; the command finds the server through the data folder."""
    return os.environ | {"VITAILOR_DATA_DIR": str(stack.settings.data_dir)}
