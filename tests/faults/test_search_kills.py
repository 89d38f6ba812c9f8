"""A search is killed at twenty random moments and must propose, score and choose what its undisturbed twin did."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from random import Random

import pytest

from service.client import Client, Job
from tests.faults.test_every_stage import SEARCH, Outcome, Service, service
from tests.stage_runs import merged
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

__all__ = ["service"]

KILLS_A_JOB = 5
JOBS = 4

# Over a supernet that exists, so that most of the time is the search's; long enough to be hit at any place of it.
LONG = {
    "constraints": [],
    "space": {
        "preset": "micro",
        "overrides": {"embed_dim": [16, 32], "depth": [1, 2, 3], "num_heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0, 3.0]},
    },
    "search": {
        "population": 20,
        "generations": 19,
        "parents": 5,
        "max_evaluations": 400,
        "evaluation": {"images": 180, "mask_seeds": 4},
    },
    "retrain": {"mode": "none", "epochs": None, "batch_size": None, "top_k": 1},
    "retry": {"max_failures": 100},
}


@pytest.fixture(scope="module")
def supernet(service: Service) -> str:
    body = merged(SEARCH, {**LONG, "search": {"generations": 1, "max_evaluations": 20}})
    with Client(service.stack.url, service.stack.api_key) as client:
        service.finish(client.search(body).id)
        return client.supernets()[0].id


@pytest.fixture(scope="module")
def body(supernet: str) -> dict[str, object]:
    taken_over = {
        key: value for key, value in merged(SEARCH, LONG).items() if key not in ("teacher", "supernet", "space")
    }
    return {**taken_over, "warm_start": {"supernet": supernet}}


@pytest.fixture(scope="module")
def undisturbed(service: Service, body: dict[str, object]) -> Outcome:
    return service.finish(service.search(dict(body)))


@pytest.mark.parametrize("round_", range(JOBS))
def test_killed_at_random_moments(service: Service, body: dict[str, object], undisturbed: Outcome, round_: int) -> None:
    moments = sorted(Random(round_).sample(range(10, 780), KILLS_A_JOB))
    with Client(service.stack.url, service.stack.api_key) as client:
        job_id = client.search(body).id
        for kill, moment in enumerate(moments):
            trainer = _trainer_at(service, client, job_id, moment, attempts=kill + 1)
            os.kill(trainer, signal.SIGKILL)
    assert service.finish(job_id) == undisturbed
    assert service.outcomes(job_id) == ["failed"] * KILLS_A_JOB + ["succeeded"]


def _trainer_at(service: Service, client: Client, job_id: str, evaluated: int, attempts: int) -> int:
    """The process that works on the job, once so many networks were scored, those of the baseline last."""

    def there() -> bool:
        job = client.job(job_id)
        assert not job.done, f"the search ended before {evaluated} evaluations: {job.error or job.status}"
        return len(service.outcomes(job_id)) == attempts and _evaluated(job) >= evaluated

    wait_until(there, f"{evaluated} evaluations in attempt {attempts}", limit_s=300, poll_s=0.02)
    worker = service.stack.pids()["worker"]
    children = [path.read_text().split() for path in Path(f"/proc/{worker}/task").glob("*/children")]
    [trainer] = [int(pid) for pids in children for pid in pids]
    return trainer


def _evaluated(job: Job) -> int:
    if job.stage != "search" or job.progress is None:
        return 0
    return round(job.progress.fraction * 800)  # 400 of the search, then 400 random ones
