"""A search is killed at random moments and must propose, score and choose what its undisturbed twin did."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

import pytest

from service.client import Client, Job
from tests.faults.measurements import NAME, key_of, read_taken
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
            # So many networks were scored, those of the baseline last.
            trainer = _trainer_when(service, client, job_id, kill + 1, lambda job, m=moment: _evaluated(job) >= m)  # type: ignore[misc]
            os.kill(trainer, signal.SIGKILL)
    assert service.finish(job_id) == undisturbed
    assert service.outcomes(job_id) == ["failed"] * KILLS_A_JOB + ["succeeded"]


@pytest.fixture
def measurements(service: Service) -> Path:
    """Where trainers write down what they measure from now on."""
    folder = service.appointments.with_name(NAME)
    folder.mkdir()
    return folder


def test_killed_at_random_moments_with_a_measured_latency_as_a_limit(
    service: Service, body: dict[str, object], measurements: Path
) -> None:
    job_id = service.search({**body, "constraints": [_latency_limit(service, body)]})
    (measurements / "taken").unlink()
    told: dict[int, tuple[list[float], float]] = {}
    moments = sorted(Random(0).sample(range(10, 760), KILLS_A_JOB))
    with Client(service.stack.url, service.stack.api_key) as client:
        for kill, moment in enumerate(moments):
            # So many networks were measured, those of killed attempts among them.
            ready: Callable[[Job], bool] = lambda _, m=moment: len(read_taken(measurements)) >= m  # type: ignore[misc]  # noqa: E731
            os.kill(_trainer_when(service, client, job_id, kill + 1, ready), signal.SIGKILL)
            told |= service.latencies(job_id)
    killed = service.finish(job_id)
    assert service.outcomes(job_id) == ["failed"] * KILLS_A_JOB + ["succeeded"]

    last_taken = dict(read_taken(measurements))
    final = service.latencies(job_id)
    assert {n: final[n] for n in told} == told, "what was told once stays as it is"
    assert all(last_taken[key_of(genotype)] == taken for genotype, taken in final.values()), "never measured again"
    assert {score is None for _, _, score in killed.candidates} == {True, False}, "the limit tells networks apart"

    (measurements / "replayed").write_text(json.dumps(last_taken))
    spec = service.job(job_id).spec
    assert service.finish(service.search(spec)) == killed


def _latency_limit(service: Service, body: dict[str, object]) -> dict[str, object]:
    """A limit that about half of the networks of a search keep."""
    generous = {"metric": "latency_ms", "device": "worker", "max": 10_000}
    few = merged(body, {"constraints": [generous], "search": {"max_evaluations": 40, "baseline": "none"}})
    job_id = service.search(few)
    service.finish(job_id)
    return {**generous, "max": median(taken for _, taken in service.latencies(job_id).values())}


def _trainer_when(service: Service, client: Client, job_id: str, attempts: int, ready: Callable[[Job], bool]) -> int:
    """The process that works on the job, once that many attempts were begun and the job is ready."""

    def there() -> bool:
        job = client.job(job_id)
        assert not job.done, f"the search ended before its kill number {attempts}: {job.error or job.status}"
        begun = len(service.outcomes(job_id)) == attempts and len(_trainers(service)) == 1
        return begun and job.stage == "search" and ready(job)

    wait_until(there, f"the moment of kill number {attempts}", limit_s=300, poll_s=0.02)
    [trainer] = _trainers(service)
    return trainer


def _trainers(service: Service) -> list[int]:
    worker = service.stack.pids()["worker"]
    children = [path.read_text().split() for path in Path(f"/proc/{worker}/task").glob("*/children")]
    return [int(pid) for pids in children for pid in pids]


def _evaluated(job: Job) -> int:
    if job.stage != "search" or job.progress is None:
        return 0
    return round(job.progress.fraction * 800)  # 400 of the search, then 400 random ones
