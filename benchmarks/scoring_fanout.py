"""Where a search that is scored by many workers would saturate: a simulation, no worker runs.

The design: the parent writes the shards of a generation (``search.shards``) into a list; workers, and the parent too,
claim one after the other, each claim a short transaction that waits for its turn; who has measured a shard writes its
sums. The search is told when all shards are done, so each generation ends with its slowest shard. A worker must load
the supernet and compute the teacher's side before its first shard.

Generations are bred for real, in ``masktas-small``, with random scores; only time is simulated. A speed-up is that of
the whole search over one worker that divides nothing.

    python benchmarks/scoring_fanout.py [--claim-ms 2] [--start-s 20] [--candidate-s 10] [--spread 0.2]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search import presets
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.prefixes import Path, build_trie, count_steps, path_of
from search.shards import Shard, plan_shards

WORKERS = (1, 2, 10, 50, 100, 300, 1000)
POPULATIONS = (50, 1000)
GENERATIONS = 4
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds; ``spread`` is the standard deviation of the workers' speeds, as a share."""

    claim_s: float
    start_s: float
    step_s: float
    spread: float


def main() -> None:
    """Print the table of speed-ups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claim-ms", type=float, default=2.0, help="of a claim and of a result (default 2)")
    parser.add_argument("--start-s", type=float, default=20.0, help="before a worker's first shard (default 20)")
    parser.add_argument("--candidate-s", type=float, default=10.0, help="of a candidate alone (default 10)")
    parser.add_argument("--spread", type=float, default=0.2, help="of the workers' speeds (default 0.2)")
    arguments = parser.parse_args()
    print(f"claim {arguments.claim_ms} ms, start {arguments.start_s} s, candidate {arguments.candidate_s} s")
    print(f"{'population':>10}{'workers':>9}{'shards':>8}{'hours':>9}{'speed-up':>10}{'efficiency':>12}{'work':>7}")
    for population in POPULATIONS:
        generations = bred(population)
        longest = max(len(path) for paths in generations for path in paths)
        costs = Costs(
            claim_s=arguments.claim_ms / 1000,
            start_s=arguments.start_s,
            step_s=arguments.candidate_s / longest / BATCHES,
            spread=arguments.spread,
        )
        whole = sum(count_steps(build_trie(paths)) for paths in generations) * BATCHES
        alone = costs.start_s + whole * costs.step_s
        for workers in WORKERS:
            plans = [plan_shards(paths, BATCHES, workers) for paths in generations]
            seconds = simulate(plans, workers, costs)
            work = sum(shard.steps for plan in plans for shard in plan) / whole
            gain = alone / seconds
            print(
                f"{population:>10}{workers:>9}{len(plans[0]):>8}{seconds / 3600:>9.2f}{gain:>10.1f}"
                f"{gain / workers:>11.0%}{work:>8.2f}"
            )


def bred(population: int) -> list[list[Path]]:
    """The paths of each generation of an evolution with random scores."""
    space = presets.resolve("masktas-small", img_size=224, in_chans=3)
    rng = np.random.default_rng(0)
    search = make_search(
        AlgorithmName.EVOLUTION,
        space=space,
        constraints=(),
        num_classes=0,
        settings=EvolutionSettings(population=population, generations=GENERATIONS),
        rng=rng,
    )
    generations: list[list[Path]] = []
    while proposals := search.ask():
        generations.append([path_of(space.decode(proposal.genotype)) for proposal in proposals])
        search.tell(rng.random(len(proposals)).tolist())
    return generations


def simulate(generations: Sequence[Sequence[Shard]], workers: int, costs: Costs) -> float:
    """Seconds until the last generation is told."""
    speeds = np.random.default_rng(1).normal(1.0, costs.spread, workers).clip(0.3)
    speeds[0] = 1.0  # the parent, and the one that works alone
    free = [costs.start_s / speed for speed in speeds]
    now = list_free_at = 0.0
    for shards in generations:
        waiting = [(max(now, at), worker) for worker, at in enumerate(free)]
        heapq.heapify(waiting)
        ends: list[float] = []
        for shard in sorted(shards, key=lambda shard: -shard.steps):  # the longest first leaves the least to wait for
            at, worker = heapq.heappop(waiting)
            # A claim and a result each need the list for a moment, one worker after the other.
            list_free_at = max(at, list_free_at) + 2 * costs.claim_s
            end = list_free_at + shard.steps * costs.step_s / float(speeds[worker])
            free[worker] = end
            ends.append(end)
            heapq.heappush(waiting, (end, worker))
        now = max(ends)
    return now


if __name__ == "__main__":
    main()
