"""Speed of the search engine alone, with a score that costs nothing.

Run ``python benchmarks/search_engine.py``. Everything here has to stay negligible beside scoring one candidate on
images, which takes milliseconds at best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from models.architecture import Genotype
from search.constraints import Constraint, feasible_set
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.metrics import Metric
from search.pareto import Goal, pareto_front
from search.presets import resolve

NUM_CLASSES = 1000
EVALUATIONS = 1000
SPACE = resolve("masktas-small")
LIMITS = [Constraint(Metric.PARAMS_M, min=18, max=23)]


def score(genotype: Genotype) -> float:
    """A smooth function of the genes; deep blocks weigh more."""
    return -sum((i + 1) * (gene - 4) ** 2 for i, gene in enumerate(genotype[1:-1]))


def best_time_s(action: Callable[[], object], repeats: int = 3) -> float:
    """The least wall time of several runs, which is the one least disturbed."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def run_search(name: AlgorithmName) -> None:
    """A whole search of ``EVALUATIONS`` candidates."""
    search = make_search(
        name,
        space=SPACE,
        constraints=LIMITS,
        num_classes=NUM_CLASSES,
        settings=EvolutionSettings(),
        rng=np.random.default_rng(0),
        max_evaluations=EVALUATIONS,
    )
    while search.finished is None:
        search.tell([score(proposal.genotype) for proposal in search.ask()])
    assert len(search.candidates) == EVALUATIONS


def rows() -> Iterator[tuple[str, str]]:
    """What was measured, and the figure."""
    for name in AlgorithmName:
        seconds = best_time_s(partial(run_search, name))
        yield f"{name}, {EVALUATIONS} candidates of {SPACE.name}", f"{EVALUATIONS / seconds:,.0f} proposals/s"
    rng = np.random.default_rng(0)
    middle = SPACE.centre(NUM_CLASSES)
    count = Metric.PARAMS_M.count_of(middle) / Metric.PARAMS_M.unit
    narrow = [Constraint(Metric.PARAMS_M, min=count, max=count * 1.001)]
    seconds = best_time_s(lambda: feasible_set(SPACE, narrow, NUM_CLASSES))
    yield "count the members of a window of 0.1 % of the parameters", f"{1e3 * seconds:.2f} ms"
    feasible = feasible_set(SPACE, narrow, NUM_CLASSES)
    seconds = best_time_s(lambda: [feasible.sample(rng) for _ in range(1000)])
    yield f"draw from its {feasible.count:.2e} members", f"{1000 / seconds:,.0f} draws/s"
    points = rng.normal(size=(10_000, 2))
    seconds = best_time_s(lambda: pareto_front(points, [Goal.MAX, Goal.MIN]))
    yield "Pareto front of 10,000 random points, 2 objectives", f"{1e3 * seconds:.1f} ms"


def main() -> None:
    """Print one line for each measurement."""
    for what, figure in rows():
        print(f"{what:<60} {figure:>20}")


if __name__ == "__main__":
    main()
