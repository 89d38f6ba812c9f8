"""One worker or two: how fast a search scores its population when another worker helps.

Prints two Markdown tables. Both searches are jobs of the service with the same seed, on trainers of one thread; their
candidates and scores have to be the same. A helper first loads the supernet and the teacher's side, so the random first
generation, during which it starts, is left out of the rate and told apart. The second table tells where the processors'
time went meanwhile: a trainer that is not at work waits for shards that the other one holds, or for the machine.

    python benchmarks/scoring_workers.py [--population 400] [--generations 3] [--img-size 8] [--mask-seeds 4]

Run it while nothing else does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from service.client import Client
from service.embedded import Embedded
from service.settings import Settings

Json = dict[str, Any]

_ROLES = {
    "workers.trainer": "trainer",
    "workers.main": "worker",
    "service.main": "API",
    "service.jobs.relay": "relay",
    "postgres": "PostgreSQL",
    "valkey": "broker",
}


@dataclass(slots=True)
class Run:
    """A search, as it went.

    Attributes:
        times: when it began, and when each generation was told of.
        busy: processor seconds by role, from the end of the first generation to that of the last.
        candidates: with costs and scores.
        helped: what the helpers have measured.
    """

    times: list[float] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)
    candidates: list[Json] = field(default_factory=list)
    helped: list[Json] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all generations but the first."""
        return self.times[-1] - self.times[1]


def main() -> None:
    """Run both searches, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", type=int, default=400, help="candidates of a generation (default 400)")
    parser.add_argument("--generations", type=int, default=3, help="after the random first one (default 3)")
    parser.add_argument("--img-size", type=int, default=8, help="in pixels: what a candidate takes (default 8)")
    parser.add_argument("--mask-seeds", type=int, default=4, help="masks of each image, likewise (default 4)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitailor-workers-") as folder:
        Path(folder).chmod(0o711)  # as root, the servers' account has to enter it
        settings = Settings(
            _env_file=None,
            data_dir=Path(folder) / "data",
            port=0,
            trainer_threads=1,
            worker_slots=2,
            calibrate=False,
        )
        with Embedded(settings, durable=False) as stack, Client(stack.url, stack.api_key) as client:
            alone, helped = (_run(client, workers, asked) for workers in (1, 2))
    count = asked.population * asked.generations
    print("| workers | first generation, s | the others, s | candidates/s | times |\n| --- | --- | --- | --- | --- |")
    for workers, run in ((1, alone), (2, helped)):
        first = run.times[1] - run.times[0]
        rate, times = count / run.seconds, alone.seconds / run.seconds
        print(f"| {workers} | {first:.1f} | {run.seconds:.1f} | {rate:.2f} | {times:.2f} |")
    same = alone.candidates == helped.candidates
    print(f"candidates and scores: {'the same' if same else 'NOT the same'}, {len(alone.candidates):,} of them")
    for told in helped.helped:
        print(f"the helper measured {told['candidates']:,} candidates in {told['shards']} shards")
    print("\n| at work, share of the time | one worker | two |\n| --- | --- | --- |")
    for role in helped.busy:
        print(f"| {role} | {alone.busy[role] / alone.seconds:.1%} | {helped.busy[role] / helped.seconds:.1%} |")


def _busy() -> Counter[str]:
    """Processor seconds so far of every process of the service, trainers apart."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            line, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        role = next((role for part, role in _ROLES.items() if part in line), "others")
        trainers = sum(known.startswith("trainer") for known in found)
        found[f"trainer {trainers + 1}" if role == "trainer" else role] += times.user + times.system
    return found


def _run(client: Client, workers: int, asked: argparse.Namespace) -> Run:
    """Run a search with so many workers."""
    population, generations = asked.population, asked.generations
    body = {
        "method": "masktas",
        "dataset": "digits",
        "space": {"preset": "micro", "img_size": asked.img_size},
        "teacher": {"pretrain": {"epochs": 3}},
        "supernet": {"epochs": 3},
        "search": {
            "population": population,
            "generations": generations,
            "max_evaluations": population * (generations + 1),
            "baseline": "none",
            "evaluation": {"workers": workers, "mask_seeds": asked.mask_seeds},
        },
        "retrain": {"mode": "none"},
    }
    job = client.search(body)
    run = Run()
    began: Counter[str] = Counter()
    for event in client.follow(job.id):
        if event.type == "stage.progress" and event.data.get("stage") == "search" and not run.times:
            run.times.append(time.monotonic())
        if event.type == "candidate" and event.data["generation"] == len(run.times) - 1:
            run.times.append(time.monotonic())
            if len(run.times) == 2:
                began = _busy()
            elif len(run.times) == generations + 2:
                run.busy = _busy() - began
    ended = client.job(job.id)
    if ended.status != "succeeded":
        raise SystemExit(f"the search with {workers} workers ended as {ended.status}: {ended.error}")
    candidates = client.candidates(job.id, sort="n", limit=population * (generations + 1))
    run.candidates = [{"n": found.n, "costs": found.costs, "score": found.score} for found in candidates]
    run.helped = [_told(client, helper.id) for helper in client.jobs(kind="scoring")]
    return run


def _told(client: Client, helper: str) -> Json:
    """What a helper has told at its end, which comes a moment after that of the search."""
    while not (job := client.job(helper)).done:
        time.sleep(0.2)
    return dict(job.result or {"shards": 0, "candidates": 0})


if __name__ == "__main__":
    main()
