"""NSGA-II's front against the fronts of evolution under several limits, and of random search, at equal budgets.

Run ``python benchmarks/nsga2_front.py``. It trains a supernet of the space ``micro`` on digits, as a job would, and
lets every algorithm search it: NSGA-II over score and MACs in one run; evolution once for each of several limits on
MACs, which share the budget and whose candidates are put together; random search. All scores are those that a job
would have, and are taken once for each network. The table has the hypervolume of each seed, from one reference point:
the worst score that any run has met, and the MACs of the largest network.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.architecture import Genotype
from search.asktell import SearchAlgorithm
from search.constraints import Constraint, reachable_range
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.hypervolume import hypervolume
from search.metrics import Metric
from search.pareto import Goal, Objective
from search.space import Space
from service.datasets.builtin import BUILTINS
from service.jobs.resolve import resolve_search
from service.jobs.spec import SearchSpec
from workers.channel import StopRequested
from workers.protocol import Start, StopReason, TrainerMessage
from workers.stages.fitness import Fitness
from workers.stages.run import search_stages
from workers.stages.search_context import SearchContext

DATASET = BUILTINS["digits"]
OBJECTIVES = (Objective("score", Goal.MAX), Objective("gmacs", Goal.MIN))
GOALS = [objective.goal for objective in OBJECTIVES]
POPULATION = 50
RIVALS = (POPULATION, 20)
"""Populations of the evolution runs that share a budget: with the usual one each has few generations."""

Point = tuple[float, float]
"""Score and GMACs."""


class Silent:
    """A channel that nobody reads and nobody stops."""

    stop_reason: StopReason | None = None

    def send(self, message: TrainerMessage) -> None:
        """Nobody listens."""

    def raise_if_stopped(self) -> None:
        """Nobody asks."""
        if self.stop_reason is not None:
            raise StopRequested(self.stop_reason)


def trained(folder: Path, epochs: int, images: int) -> SearchContext:
    """The context of a search after its supernet was trained."""
    body = {
        "method": "masktas",
        "dataset": DATASET.name,
        "teacher": {"pretrain": {"epochs": epochs}},
        "supernet": {"epochs": epochs},
        "search": {"evaluation": {"images": images, "companions": False}},
        "retrain": {"mode": "none"},
    }
    spec = resolve_search(SearchSpec.model_validate(body), DATASET).spec
    run_dir = folder / "run"
    run_dir.mkdir()
    start = Start(
        job_id="benchmark",
        fence=1,
        kind="search",
        spec=spec.model_dump(mode="json"),
        seed=spec.seed,
        run_dir=str(run_dir),
        cache_dir=str(folder / "cache"),
        threads=1,
        device="cpu",
        checkpoint_s=1e9,
        lease_s=60,
        dataset=DATASET.to_json(),
    )
    ctx = SearchContext(start, Silent())  # type: ignore[arg-type]  # all that stages ask of a channel
    for stage in search_stages():
        if stage.name == "search":
            break
        ctx.enter(stage.name)
        ctx.complete(stage.run(ctx))
    ctx.enter("search")
    return ctx


class Scores:
    """The score of each network, taken once."""

    def __init__(self, ctx: SearchContext) -> None:
        self._space, self._fitness = ctx.space, Fitness(ctx)
        self._known: dict[Genotype, float | None] = {}

    @property
    def worst(self) -> float:
        """Of all that were asked for."""
        return min(score for score in self._known.values() if score is not None)

    def of(self, genotypes: Sequence[Genotype]) -> list[float | None]:
        """Scores of these networks."""
        new = [genotype for genotype in genotypes if genotype not in self._known]
        archs = [self._space.decode(genotype) for genotype in new]
        measured = self._fitness.measure(archs, judged=[False] * len(archs), poll=lambda: None) if archs else []
        for genotype, arch, measures in zip(new, archs, measured, strict=True):
            self._known[genotype] = self._fitness.score(arch, measures)
        return [self._known[genotype] for genotype in genotypes]


def run(
    name: AlgorithmName,
    space: Space,
    scores: Scores,
    budget: int,
    seed: int,
    population: int = POPULATION,
    **more: Any,
) -> list[Point]:
    """All scored candidates of one search."""
    search: SearchAlgorithm = make_search(
        name,
        space=space,
        constraints=more.pop("constraints", []),
        num_classes=0,
        settings=EvolutionSettings(population=population, parents=max(2, population // 5), generations=budget),
        rng=np.random.default_rng(seed),
        max_evaluations=budget,
        objectives=OBJECTIVES,
        **more,
    )
    while proposals := search.ask():
        search.tell(scores.of([proposal.genotype for proposal in proposals]))
    macs = Metric.GMACS
    return [
        (c.score, macs.count_of(space.decode(c.proposal.genotype)) / macs.unit)
        for c in search.candidates
        if c.score is not None
    ]


def under_limits(space: Space, scores: Scores, budget: int, seed: int, limits: int, population: int) -> list[Point]:
    """Candidates of evolution runs under evenly spaced limits, up to none."""
    reach = reachable_range(space, Metric.GMACS, 0)
    found = []
    for i in range(1, limits + 1):
        limit = Constraint(Metric.GMACS, max=reach.min + (reach.max - reach.min) * i / limits)
        share = budget // limits + (i <= budget % limits)
        found += run(AlgorithmName.EVOLUTION, space, scores, share, seed, population, constraints=[limit])
    return found


def main() -> None:
    """Print one row for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="of teacher and supernet")
    parser.add_argument("--images", type=int, default=128, help="that candidates are scored on")
    parser.add_argument("--evaluations", type=int, default=1000, help="of each algorithm and seed")
    parser.add_argument("--limits", type=int, default=5, help="of the evolution runs that share a budget")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ctx = trained(Path(folder), asked.epochs, asked.images)
        space, scores = ctx.space, Scores(ctx)
        budget = asked.evaluations

        def rivals(population: int) -> Callable[[int], list[Point]]:
            return lambda seed: under_limits(space, scores, budget, seed, asked.limits, population)

        algorithms: dict[str, Callable[[int], list[Point]]] = {
            "nsga2": lambda seed: run(AlgorithmName.NSGA2, space, scores, budget, seed),
            **{f"evolution, {asked.limits} limits, population {size}": rivals(size) for size in RIVALS},
            "random": lambda seed: run(AlgorithmName.RANDOM, space, scores, budget, seed),
        }
        found = {name: [search(seed) for seed in range(asked.seeds)] for name, search in algorithms.items()}
    reference = [scores.worst, reachable_range(space, Metric.GMACS, 0).max]
    print(f"reference: score {reference[0]:.6g}, gmacs {reference[1]:.6g}; {budget} evaluations")
    print("| seed | " + " | ".join(found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for seed in range(asked.seeds):
        volumes = [hypervolume(points[seed], GOALS, reference) for points in found.values()]
        print(f"| {seed} | " + " | ".join(f"{volume:.6g}" for volume in volumes) + " |")


if __name__ == "__main__":
    main()
