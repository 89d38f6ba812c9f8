"""What is kept of a job of the study."""

from __future__ import annotations

from typing import Any

from study.memory import commit
from study.plan import Entry

from service.client import Client, Job

Json = dict[str, Any]


def found(client: Client, entry: Entry, job: Job) -> Json:
    """Spec and accuracies of a job that has succeeded; validation accuracies of all widths, in shares."""
    assert job.result is not None
    return {
        "arm": entry.arm,
        "seed": entry.seed,
        "commit": commit(),
        "spec": job.spec,
        "accuracies": {str(width["head_dim"]): width["accuracy"] for width in job.result["widths"]},
        "interpolated": [width["head_dim"] for width in job.result["widths"] if width["interpolated"]],
        "result": {name: job.result.get(name) for name in ("best", "holdout", "timings", "digests")},
    }
