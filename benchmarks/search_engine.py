"""Speed of the search engine alone, with a score that costs nothing.

Run ``python benchmarks/search_engine.py``. Everything here has to stay negligible beside scoring one candidate on
images, which takes milliseconds at best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from models.architecture import Genotype
from search.constraints import Constraint
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.latency import LatencySetting, LatencyTable, Precision, Runtime
from search.metrics import Metric, Window
from search.pareto import Goal, pareto_front
from search.presets import resolve
from search.sampling import FeasibleSet

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


def made_up_table(joint: bool) -> LatencyTable:
    """Latencies of no device, for all members of the space."""
    names = ("img_size", "patch_size", "in_chans", "head_dim", "rel_pos")
    setting = LatencySetting(
        device="none",
        runtime=Runtime.TORCH,
        precision=Precision.FP32,
        batch_size=1,
        threads=1,
        percentile=50,
        warmup_runs=0,
        runs=1,
        num_classes=NUM_CLASSES,
        **{name: getattr(SPACE, name) for name in names},
    )
    blocks = {
        (width, heads, ratio): width * (700 * heads + int(900 * ratio)) + (9_973 * heads * int(ratio) if joint else 0)
        for width, heads, ratio in product(SPACE.embed_dim, SPACE.num_heads, SPACE.mlp_ratio)
    }
    return LatencyTable(setting, {width: 5_000 * width for width in SPACE.embed_dim}, blocks)


def rows() -> Iterator[tuple[str, str]]:
    """What was measured, and the figure."""
    for name in (AlgorithmName.EVOLUTION, AlgorithmName.RANDOM):
        seconds = best_time_s(partial(run_search, name))
        yield f"{name}, {EVALUATIONS} candidates of {SPACE.name}", f"{EVALUATIONS / seconds:,.0f} proposals/s"
    rng = np.random.default_rng(0)
    middle = SPACE.centre(NUM_CLASSES)
    count = Metric.PARAMS_M.count_of(middle) / Metric.PARAMS_M.unit
    narrow = Constraint(Metric.PARAMS_M, min=count, max=count * 1.001)
    seconds = best_time_s(partial(FeasibleSet, SPACE, [narrow.window], NUM_CLASSES))
    yield "count the members of a window of 0.1 % of the parameters", f"{1e3 * seconds:.2f} ms"
    for joint in (False, True):
        table = made_up_table(joint)
        windows = [Window(Metric.LATENCY_MS, middle_ns := table.predict_ns(middle), middle_ns * 1001 // 1000)]
        seconds = best_time_s(partial(FeasibleSet, SPACE, windows, NUM_CLASSES, table))
        yield f"the same of the latency, {'joint' if joint else 'separate'} times of a block", f"{1e3 * seconds:.0f} ms"
    feasible = FeasibleSet(SPACE, [narrow.window], NUM_CLASSES)
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
