"""A helper of a real search is killed while it holds shards: the search ends as it does alone."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service.client import Client
from service.db.engine import session_factory, sync_engine
from service.db.models import Attempt, Candidate, Job, JobKind
from service.db.shard_models import Shard
from service.embedded import Embedded
from service.ids import IdKind, parse_id
from service.settings import Settings
from tests.faults.stack import processes_below
from tests.faults.test_every_stage import SEARCH
from tests.stage_runs import merged
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 2

# Long enough that a helper, which first loads torch, has a part in it after each kill.
LONG = {
    "constraints": [],
    "space": {"preset": "micro", "img_size": 8},
    "search": {
        "population": 150,
        "generations": 15,
        "parents": 20,
        "max_evaluations": 2400,
        "baseline": "none",
        "evaluation": {"images": 180, "mask_seeds": 4},
    },
    "retrain": {"mode": "none", "epochs": None, "batch_size": None, "top_k": 1},
}


class Service:
    def __init__(self, stack: Embedded) -> None:
        self.client = Client(stack.url, stack.api_key)
        self._worker = stack.pids()["worker"]
        self._sessions = session_factory(sync_engine(stack.settings.database_url, "test"))

    def trainers(self) -> list[int]:
        return processes_below(self._worker)

    def search(self, workers: int) -> str:
        body = merged({**SEARCH, **LONG}, {"search": {"evaluation": {"workers": workers}}})
        return self.client.search(body).id

    def found(self, job_id: str) -> list[tuple[int, list[float], float | None]]:
        """All candidates of a search that has ended, with their scores."""
        wait_until(lambda: self.client.job(job_id).done, f"{job_id} ends", limit_s=600, poll_s=0.2)
        job = self.client.job(job_id)
        assert job.status == "succeeded", job.error
        query = select(Candidate).where(Candidate.job_id == parse_id(IdKind.JOB, job_id)).order_by(Candidate.n)
        with self._sessions() as session:
            return [(row.n, row.genotype, row.score) for row in session.scalars(query)]

    def is_helped(self, job_id: str) -> bool:
        """Whether a helper has a shard that it has not handed in."""
        assert not self.client.job(job_id).done, "the search was over before a helper had a part in it"
        search = parse_id(IdKind.JOB, job_id)
        query = select(func.count()).where(Shard.job_id == search, Shard.holder_id != search, Shard.result.is_(None))
        with self._sessions() as session:
            return bool(session.scalars(query).one())

    def helper(self, job_id: str) -> tuple[dict[str, Any], list[str | None]]:
        """The result of the only helper that a search has had, and how its attempts ended."""
        query = select(Job).where(Job.parent_id == parse_id(IdKind.JOB, job_id), Job.kind == JobKind.SCORING)
        with self._sessions() as session:
            helper = session.scalars(query).one()
            outcomes = select(Attempt.outcome).where(Attempt.job_id == helper.id).order_by(Attempt.fence)
            return dict(helper.result or {}), [*session.scalars(outcomes)]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="vitailor-test-") as folder:
        Path(folder).chmod(0o711)  # as root, the servers run under another account
        settings = Settings(
            _env_file=None,
            data_dir=Path(folder) / "data",
            port=0,
            trainer_threads=1,
            worker_slots=2,
            lease_s=10,
            heartbeat_s=0.5,
            retry_backoff_s=0.1,
            relay_interval_s=0.2,
            checkpoint_s=1,
            calibrate=False,
        )
        with Embedded(settings, durable=False) as stack:
            yield Service(stack)


def test_a_search_whose_helper_is_killed_finds_what_it_finds_alone(service: Service) -> None:
    alone = service.found(service.search(workers=1))
    wait_until(lambda: not service.trainers(), "the trainer has gone")
    job_id = service.search(workers=2)
    wait_until(service.trainers, "the trainer of the search", limit_s=60)
    [own] = service.trainers()
    for kill in range(KILLS):
        wait_until(
            lambda: service.is_helped(job_id) and len(service.trainers()) == 2,
            f"the helper holds a shard before kill {kill + 1}",
            limit_s=200,
            poll_s=0.02,
        )
        [helper] = set(service.trainers()) - {own}
        os.kill(helper, signal.SIGKILL)
        wait_until(lambda pid=helper: pid not in service.trainers(), "it is dead")  # type: ignore[misc]
    assert service.found(job_id) == alone
    _, outcomes = service.helper(job_id)
    assert outcomes[:KILLS] == ["failed"] * KILLS
