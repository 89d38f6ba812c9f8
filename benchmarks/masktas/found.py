"""What is kept of a job of the study."""

from __future__ import annotations

from typing import Any

from study.memory import commit
from study.plan import Entry

from service.client import Client, Job

Json = dict[str, Any]

_RESULT = ("best", "holdout", "scores", "evaluations", "digests", "timings", "images", "rank_correlation")
_CANDIDATE = ("n", "genotype", "score", "scores", "costs", "rank", "accuracy")


def found(client: Client, entry: Entry, job: Job) -> Json:
    """Spec, result and candidates of a job that has succeeded."""
    assert job.result is not None
    candidates = client.candidates(job.id)
    kept = candidates if entry.keeps_candidates else [c for c in candidates if c.rank is not None]
    return {
        "arm": entry.arm,
        "seed": entry.seed,
        "commit": commit(),
        "spec": job.spec,
        "result": {name: job.result.get(name) for name in _RESULT},
        "candidates": [{name: candidate.model_dump()[name] for name in _CANDIDATE} for candidate in kept],
    }
