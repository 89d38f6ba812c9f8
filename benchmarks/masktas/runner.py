"""Runs the study as jobs of the service, and keeps what they found in a file that outlives the machine.

The file is the memory: an entry that it holds for the same body is not run again. Jobs that a stopped run has left
behind are found by their name in the service's own folder, and are waited for instead of started anew.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from masktas.plan import Entry, Scale
from service.client import Client, Job
from service.embedded import Embedded
from service.settings import Settings

Json = dict[str, Any]

SPLITS = {"toy": (300, 200, 200), "full": (10_000, 8_000, 10_000)}
"""Images to train on, to rank on, and never looked at: the first two from CIFAR-10's training part, in its order."""

_POLL_S = 5.0


def write_images(source: Path, scale: Scale, target: Path) -> None:
    """One Parquet file with official splits from ``cifar10-train.parquet`` and ``cifar10-test.parquet``."""
    train, val, test = SPLITS[scale.name]
    learnt, unseen = (pq.read_table(source / f"cifar10-{part}.parquet") for part in ("train", "test"))
    parts = [learnt.slice(0, train), learnt.slice(train, val), unseen.cast(learnt.schema).slice(0, test)]
    names = [name for name, part in zip(("train", "val", "test"), parts, strict=True) for _ in range(part.num_rows)]
    table = pa.concat_tables(parts).append_column("split", pa.array(names))
    pq.write_table(table.replace_schema_metadata(learnt.schema.metadata), target)


class Memory:
    """Results by entry, written after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: dict[str, Json] = json.loads(path.read_text())["entries"] if path.exists() else {}

    def keep(self, name: str, found: Json) -> None:
        """Add an entry."""
        self.entries[name] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One line an entry, which a diff of two versions can show.
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(self.entries[key])}" for key in sorted(self.entries))
        self._path.write_text(f'{{"entries": {{\n{lines}\n}}}}\n')


def run(scale: Scale, jobs: Sequence[Entry], images: Path, work: Path, memory: Memory, slots: int) -> None:
    """Run every entry that the memory does not hold.

    Args:
        scale: of the study.
        jobs: in order.
        images: folder of CIFAR-10's Parquet files.
        work: folder of the service; kept, so that an interrupted job goes on.
        memory: where results go.
        slots: jobs at once.
    """
    imports = work / "imports"
    imports.mkdir(parents=True, exist_ok=True)
    # Networks this small are faster on one thread than on two.
    settings = Settings(
        _env_file=None, data_dir=work / "data", import_root=imports, port=0, trainer_threads=1, worker_slots=slots
    )
    waiting = [entry for entry in jobs if entry.name not in memory.entries or _is_needed(entry, jobs, memory)]
    with Embedded(settings) as stack, Client(stack.url, stack.api_key) as client:
        dataset = _dataset(client, scale, images, imports)
        made: dict[str, str] = {}
        running: dict[str, Entry] = {}
        while waiting or running:
            ready = [e for e in waiting if not e.needs_full or f"supernet/full-{e.seed}" in made]
            for entry in ready[: slots - len(running)]:
                waiting.remove(entry)
                running[_started(client, entry, dataset, made).id] = entry
            time.sleep(_POLL_S)
            for job in [client.job(job_id) for job_id in running]:
                if job.done:
                    _collect(client, running.pop(job.id), job, made, memory)


def _is_needed(entry: Entry, jobs: Sequence[Entry], memory: Memory) -> bool:
    """Whether a job that has not run yet takes this one's weights over."""
    return entry.arm == "full" and any(
        other.seed == entry.seed and other.needs_full and other.name not in memory.entries for other in jobs
    )


def _collect(client: Client, entry: Entry, job: Job, made: dict[str, str], memory: Memory) -> None:
    if job.status != "succeeded":
        raise SystemExit(f"{entry.name} ended as {job.status}: {job.error}")
    made |= {f"supernet/{entry.name}": net.id for net in client.supernets() if net.job == job.id}
    made |= {f"teacher/{entry.name}": net.id for net in client.teachers() if net.job == job.id}
    if entry.name not in memory.entries:  # what was kept names the commit that it ran with
        memory.keep(entry.name, _found(client, entry, job))


def _dataset(client: Client, scale: Scale, images: Path, imports: Path) -> str:
    name = f"cifar10-{scale.name}"
    for known in client.datasets():
        if known.name == name and known.status == "ready":
            return known.id
    write_images(images, scale, imports / f"{name}.parquet")
    started = client.import_dataset(name, f"{name}.parquet")
    while (known := client.dataset(started.id)).status == "validating":
        time.sleep(_POLL_S)
    assert known.status == "ready", known.error
    return known.id


def _started(client: Client, entry: Entry, dataset: str, made: dict[str, str]) -> Job:
    known = [job for job in client.jobs(kind="search", limit=1000) if job.name == entry.name]
    job = next((job for job in known if job.status not in ("failed", "cancelled")), None)
    job = job or client.search(entry.body(dataset, made))
    print(f"{entry.name}: {job.id}", flush=True)
    return job


def _found(client: Client, entry: Entry, job: Job) -> Json:
    assert job.result is not None
    candidates = client.candidates(job.id)
    kept = candidates if entry.keeps_candidates else [c for c in candidates if c.rank is not None]
    return {
        "arm": entry.arm,
        "seed": entry.seed,
        "commit": _commit(),
        "spec": job.spec,
        "result": {
            name: job.result.get(name)
            for name in ("best", "holdout", "scores", "evaluations", "digests", "timings", "images", "rank_correlation")
        },
        "candidates": [
            {name: value for name, value in candidate.model_dump().items() if name in _KEPT} for candidate in kept
        ],
    }


_KEPT = {"n", "genotype", "score", "scores", "costs", "rank", "accuracy"}


def _commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip()
