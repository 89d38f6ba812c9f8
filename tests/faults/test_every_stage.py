"""A search is killed in each of its stages and must end as its undisturbed twin did, to the bit."""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service.client import Client, Job
from service.db.engine import session_factory, sync_engine
from service.db.models import Artifact, Attempt, Candidate
from service.embedded import Embedded
from service.embedded.applications import application_children
from service.embedded.children import ChildSpec
from service.ids import IdKind, parse_id
from service.settings import Settings
from tests.faults.appointments import FOLDER
from tests.faults.stack import processes_below
from tests.stage_runs import TINY, TINY_SCALA, merged
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

STAGES = ("data", "teacher", "supernet", "search", "retrain", "export", "report")

# Long enough for checkpoints inside the stages, which come every 0.2 seconds here.
SEARCH = merged(TINY, {"teacher": {"pretrain": {"epochs": 4}}, "supernet": {"epochs": 4}, "retrain": {"epochs": 3}})

# Long enough in the same way.
SCALA = merged(
    TINY_SCALA, {"teacher": {"train": {"epochs": 4, "batch_size": 128}}, "training": {"epochs": 4, "batch_size": 128}}
)
SEPARATE = merged(SCALA, {"method": "separate", "widths": {"smallest": 0.5, "step": 0.5}})


@dataclass(frozen=True)
class Outcome:
    """What may not depend on what happened on the way."""

    genotype: list[float]
    holdout: Any
    candidates: list[tuple[int, list[float], float | None]]
    digests: dict[tuple[str, int | None], str]


class Service:
    def __init__(self, stack: Embedded, appointments: Path) -> None:
        self.stack = stack
        self.appointments = appointments
        self._client = Client(stack.url, stack.api_key)
        self._sessions = session_factory(sync_engine(stack.settings.database_url, "test"))

    def search(self, body: dict[str, Any] = SEARCH) -> str:
        return self._client.search(body).id

    def finish(self, job_id: str) -> Outcome:
        wait_until(lambda: self._client.job(job_id).done, f"{job_id} ends", limit_s=400, poll_s=0.2)
        job = self._client.job(job_id)
        assert job.status == "succeeded", job.error
        assert job.result is not None
        key = parse_id(IdKind.JOB, job_id)
        with self._sessions() as session:
            rows = session.scalars(select(Candidate).where(Candidate.job_id == key).order_by(Candidate.n)).all()
            files = session.scalars(select(Artifact).where(Artifact.job_id == key)).all()
            return Outcome(
                genotype=job.result["best"]["genotype"],
                holdout=job.result["holdout"],
                candidates=[(row.n, row.genotype, row.score) for row in rows],
                # Descriptions name their job, which is another one.
                digests={(f.name, f.candidate_n): f.sha256 for f in files if f.name.endswith(".safetensors")},
            )

    def cancel(self, job_id: str) -> None:
        self._client.act(job_id, "cancel")

    def candidates(self, job_id: str) -> int:
        with self._sessions() as session:
            rows = select(func.count()).where(Candidate.job_id == parse_id(IdKind.JOB, job_id))
            return session.execute(rows).scalar_one()

    def job(self, job_id: str) -> Job:
        return self._client.job(job_id)

    def latencies(self, job_id: str) -> dict[int, tuple[list[float], float]]:
        """Genotype and measured milliseconds of the candidates that are known by now."""
        key = parse_id(IdKind.JOB, job_id)
        with self._sessions() as session:
            rows = session.scalars(select(Candidate).where(Candidate.job_id == key))
            return {row.n: (row.genotype, row.costs["latency_ms"]) for row in rows}

    def outcomes(self, job_id: str) -> list[str | None]:
        with self._sessions() as session:
            key = parse_id(IdKind.JOB, job_id)
            return list(session.scalars(select(Attempt.outcome).where(Attempt.job_id == key).order_by(Attempt.fence)))


def _deadly(settings: Settings, listener: socket.socket, appointments: Path) -> Sequence[ChildSpec]:
    return [
        replace(
            child,
            argv=(sys.executable, "-m", "tests.faults.deadly_worker"),
            env={**child.env, FOLDER: str(appointments)},
        )
        if child.name == "worker"
        else child
        for child in application_children(settings, listener)
    ]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="vitailor-test-") as folder:
        Path(folder).chmod(0o711)  # as root, the servers run under another account
        settings = Settings(
            _env_file=None,
            data_dir=Path(folder) / "data",
            port=0,
            trainer_threads=1,
            lease_s=10,
            heartbeat_s=0.5,
            retry_backoff_s=0.1,
            republish_s=1,
            relay_interval_s=0.2,
            checkpoint_s=0.2,
            calibrate=False,
        )
        appointments = Path(folder) / "appointments"
        appointments.mkdir()
        applications = lambda settings, listener: _deadly(settings, listener, appointments)  # noqa: E731
        with Embedded(settings, applications=applications, durable=False) as stack:
            yield Service(stack, appointments)


@pytest.fixture(scope="module")
def undisturbed(service: Service) -> Outcome:
    job_id = service.search()
    outcome = service.finish(job_id)
    assert service.outcomes(job_id) == ["succeeded"]
    assert outcome.digests
    return outcome


def test_the_same_search_twice_gives_the_same_candidates_and_weights(service: Service, undisturbed: Outcome) -> None:
    assert service.finish(service.search()) == undisturbed


@pytest.mark.parametrize(("victim", "outcome"), [("trainer", "failed"), ("worker", "lost")])
def test_killed_once_in_each_stage(service: Service, undisturbed: Outcome, victim: str, outcome: str) -> None:
    for stage in STAGES:
        (service.appointments / stage).write_text(victim)
    job_id = service.search()
    assert service.finish(job_id) == undisturbed
    assert list(service.appointments.iterdir()) == []
    assert service.outcomes(job_id) == [outcome] * len(STAGES) + ["succeeded"]


def test_killed_database_changes_nothing(service: Service, undisturbed: Outcome) -> None:
    (service.appointments / "supernet").write_text(str(service.stack.pids()["postgres"]))
    job_id = service.search()
    assert service.finish(job_id) == undisturbed
    assert list(service.appointments.iterdir()) == []
    assert service.outcomes(job_id) == ["succeeded"]


@pytest.mark.parametrize(("body", "training"), [(SCALA, "supernet"), (SEPARATE, "separate")], ids=["scala", "separate"])
def test_a_search_over_widths_killed_once_in_each_stage(service: Service, body: dict[str, Any], training: str) -> None:
    expected = service.finish(service.search(body))
    stages = ("data", "teacher", training, "search", "export", "report")
    for stage in stages:
        (service.appointments / stage).write_text("trainer")
    job_id = service.search(body)
    assert service.finish(job_id) == expected
    assert list(service.appointments.iterdir()) == []
    assert service.outcomes(job_id) == ["failed"] * len(stages) + ["succeeded"]


def _longer(stage: str) -> dict[str, Any]:
    """A search that would be in this stage for minutes."""
    many = {"epochs": 100_000}
    changes: dict[str, Any] = {"teacher": {"pretrain": many}, "supernet": many, "retrain": many}
    changes["search"] = {"evaluation": {"mask_seeds": 16, "batch_size": 1}}  # thousands of passes for each candidate
    return merged(SEARCH, {stage: changes[stage]} if stage in changes else {})


@pytest.mark.parametrize("stage", ["teacher", "supernet", "search", "retrain", "export"])
def test_a_search_that_is_cancelled_in_a_stage_ends_within_ten_seconds(service: Service, stage: str) -> None:
    job_id = service.search(_longer(stage))
    wait_until(lambda: service.job(job_id).stage == stage, f"{job_id} is in {stage}", limit_s=200, poll_s=0.05)
    kept = service.candidates(job_id)
    began = time.monotonic()
    service.cancel(job_id)
    wait_until(lambda: service.job(job_id).done, "it has ended", limit_s=10)
    worker = service.stack.pids()["worker"]
    wait_until(lambda: not trainers_below(worker), "no process of it is left", limit_s=10)
    assert time.monotonic() - began < 10
    job = service.job(job_id)
    assert (job.status, job.stage) == ("cancelled", stage)
    assert service.outcomes(job_id) == ["cancelled"]
    assert service.candidates(job_id) >= kept
    assert kept > 0 or stage in ("teacher", "supernet", "search")


def trainers_below(worker: int) -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline") for pid in processes_below(worker)}
    return [pid for pid, path in commands.items() if path.exists() and b"trainer" in path.read_bytes()]
