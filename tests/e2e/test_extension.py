"""A search that has succeeded goes on as a new job, and ends as one that was asked for as much at once."""

from __future__ import annotations

from typing import Any

import pytest

from service.client import Client, Job
from tests.e2e.conftest import Finished
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_an_extended_search_equals_the_one_asked_for_at_once(client: Client, finished: Finished) -> None:
    search = finished.job.spec["search"]
    evaluations = len(list(client.candidates(finished.job.id)))
    totals = {"generations": search["generations"] + 2, "max_evaluations": evaluations + 2 * search["population"]}
    new = client.extend(finished.job.id, **totals)
    assert new.id != finished.job.id
    extended = ended(client, new)
    assert found(client, extended)[:evaluations] == found(client, finished.job)
    at_once = ended(client, client.search(extended.spec))
    assert found(client, extended) == found(client, at_once)
    assert weights(client, extended) == weights(client, at_once)
    for part in ("best", "baseline", "generations", "holdout", "evaluations"):
        assert (extended.result or {})[part] == (at_once.result or {})[part]
    assert len(found(client, extended)) == totals["max_evaluations"]


def ended(client: Client, job: Job) -> Job:
    wait_until(lambda: client.job(job.id).done, f"{job.id} ends", limit_s=600, poll_s=0.5)
    job = client.job(job.id)
    assert job.status == "succeeded", job.error
    return job


def found(client: Client, job: Job) -> list[Any]:
    candidates = sorted(client.candidates(job.id), key=lambda candidate: candidate.n)
    return [(c.n, c.generation, c.score, c.costs) for c in candidates]


def weights(client: Client, job: Job) -> set[tuple[str, str]]:
    return {(a.name, a.sha256) for a in client.artifacts(job.id) if a.name.endswith(".safetensors")}
