"""One worker or two: how fast a search scores its population when another worker helps.

Prints a Markdown table. Both searches are jobs of the service with the same seed, on trainers of one thread; their
candidates and scores have to be the same. A helper first loads the supernet and the teacher's side, so the random first
generation, during which it starts, is left out of the rate and told apart.

    python benchmarks/scoring_workers.py [--population 1500] [--generations 3] [--img-size 8]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from service.client import Client
from service.embedded import Embedded
from service.settings import Settings

Json = dict[str, Any]


def main() -> None:
    """Run both searches, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", type=int, default=1500, help="candidates of a generation (default 1500)")
    parser.add_argument("--generations", type=int, default=3, help="after the random first one (default 3)")
    parser.add_argument("--img-size", type=int, default=8, help="in pixels: what a candidate takes (default 8)")
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
            found = {
                workers: _run(client, workers, asked.population, asked.generations, asked.img_size)
                for workers in (1, 2)
            }
    print("| workers | first generation, s | the others, s | candidates/s | times |\n| --- | --- | --- | --- | --- |")
    rates = {}
    for workers, (times, _) in found.items():
        rates[workers] = asked.population * asked.generations / (times[-1] - times[1])
        first, others = times[1] - times[0], times[-1] - times[1]
        ratio = rates[workers] / rates[1]
        print(f"| {workers} | {first:.1f} | {others:.1f} | {rates[workers]:.2f} | {ratio:.2f} |")
    same = found[1][1] == found[2][1]
    print(f"candidates and scores: {'the same' if same else 'NOT the same'}, {len(found[1][1]):,} of them")


def _run(
    client: Client, workers: int, population: int, generations: int, img_size: int
) -> tuple[list[float], list[Json]]:
    """When the search began and each generation was told of, and all candidates with their scores."""
    body = {
        "method": "masktas",
        "dataset": "digits",
        "space": {"preset": "micro", "img_size": img_size},
        "teacher": {"pretrain": {"epochs": 3}},
        "supernet": {"epochs": 3},
        "search": {
            "population": population,
            "generations": generations,
            "max_evaluations": population * (generations + 1),
            "baseline": "none",
            "evaluation": {"workers": workers},
        },
        "retrain": {"mode": "none"},
    }
    job = client.search(body)
    times: list[float] = []
    for event in client.follow(job.id):
        if event.type == "stage.progress" and event.data.get("stage") == "search" and not times:
            times.append(time.monotonic())
        if event.type == "candidate" and event.data["generation"] == len(times) - 1:
            times.append(time.monotonic())
    ended = client.job(job.id)
    if ended.status != "succeeded":
        raise SystemExit(f"the search with {workers} workers ended as {ended.status}: {ended.error}")
    candidates = client.candidates(job.id, sort="n", limit=population * (generations + 1))
    return times, [{"n": found.n, "costs": found.costs, "score": found.score} for found in candidates]


if __name__ == "__main__":
    main()
