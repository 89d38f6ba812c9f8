"""Runs a study as jobs of the service, and keeps what they found in a file that outlives the machine.

The file is the memory: an entry that it holds is not run again. Jobs that a stopped run has left behind are found by
their name in the service's own folder, and are waited for instead of started anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.client import Client, Job
from service.embedded import Embedded
from service.settings import Settings
from study.memory import Memory
from study.plan import Entry, Study

_POLL_S = 5.0


def write_images(source: Path, splits: tuple[int, int, int], target: Path) -> None:
    """One Parquet file with official splits from ``cifar10-train.parquet`` and ``cifar10-test.parquet``."""
    train, val, test = splits
    learnt, unseen = (pq.read_table(source / f"cifar10-{part}.parquet") for part in ("train", "test"))
    parts = [learnt.slice(0, train), learnt.slice(train, val), unseen.cast(learnt.schema).slice(0, test)]
    names = [name for name, part in zip(("train", "val", "test"), parts, strict=True) for _ in range(part.num_rows)]
    table = pa.concat_tables(parts).append_column("split", pa.array(names))
    pq.write_table(table.replace_schema_metadata(learnt.schema.metadata), target)


def run(study: Study, wanted: Callable[[Entry], bool], images: Path, work: Path, memory: Memory, slots: int) -> None:
    """Run every wanted entry that the memory does not hold, and those whose weights one of them takes over.

    Args:
        study: what there is to run.
        wanted: which of it.
        images: folder of CIFAR-10's Parquet files.
        work: folder of the service; kept, so that an interrupted job goes on.
        memory: where results go.
        slots: jobs at once.
    """
    imports = work / "imports"
    imports.mkdir(parents=True, exist_ok=True)
    # Networks this small are faster on one thread than on two.
    settings = Settings(
        _env_file=None,
        data_dir=work / "data",
        import_root=imports,
        port=0,
        trainer_threads=1,
        worker_slots=slots,
        calibrate=False,  # nobody asks for an estimate
    )
    missing = {e.name: e.needs for e in study.entries if wanted(e) and e.name not in memory.entries}
    waiting = [entry for entry in study.entries if entry.name in missing or entry.name in missing.values()]
    with Embedded(settings) as stack, Client(stack.url, stack.api_key) as client:
        dataset = _dataset(client, study, images, imports)
        done: set[str] = set()
        made: dict[str, str] = {}
        running: dict[str, Entry] = {}
        while waiting or running:
            ready = [entry for entry in waiting if entry.needs is None or entry.needs in done]
            for entry in ready[: slots - len(running)]:
                waiting.remove(entry)
                running[_started(client, entry, dataset, made).id] = entry
            time.sleep(_POLL_S)
            for job in [client.job(job_id) for job_id in running]:
                if job.done:
                    entry = running.pop(job.id)
                    made |= _collect(client, study, entry, job, memory)
                    done.add(entry.name)


def _collect(client: Client, study: Study, entry: Entry, job: Job, memory: Memory) -> dict[str, str]:
    """Keep what a job has found; returns the ids that it has left."""
    if job.status != "succeeded":
        raise SystemExit(f"{entry.name} ended as {job.status}: {job.error}")
    if entry.name not in memory.entries:  # what was kept names the commit that it ran with
        memory.keep(entry.name, study.found(client, entry, job))
    supernets = {f"supernet/{entry.name}": net.id for net in client.supernets() if net.job == job.id}
    return supernets | {f"teacher/{entry.name}": net.id for net in client.teachers() if net.job == job.id}


def _dataset(client: Client, study: Study, images: Path, imports: Path) -> str:
    name = f"cifar10-{study.name}"
    for known in client.datasets():
        if known.name == name and known.status == "ready":
            return known.id
    write_images(images, study.splits, imports / f"{name}.parquet")
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
