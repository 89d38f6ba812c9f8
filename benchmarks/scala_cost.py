"""What 13 widths cost to train: one slimmable network (Scala, US-Net), or 13 networks one after the other.

Networks of ``scala_widths.py`` at batches of 128 on one thread, random images. Rounds alternate between the methods, so
that other work on the machine meets all of them.

    python benchmarks/scala_cost.py [--steps N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from scala.cost import BATCH, METHODS, Cost, measure
from scala.plan import SCALES


def main() -> None:
    """Measure, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="of each network in a round (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    chosen = parser.parse_args()
    # The children import this folder's packages by name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    rounds = [{method: measure(method, chosen.steps) for method in METHODS} for _ in range(chosen.rounds)]
    full = SCALES["full"]
    steps = full.recipe["epochs"] * (full.splits[0] // BATCH)
    print("| method | step, ms | against scala | training, min | peak memory, MiB | stored parameters, M |")
    print("| --- | --- | --- | --- | --- | --- |")
    for method in METHODS:
        costs = [(found[method], found["scala"]) for found in rounds]
        print(f"| {method} | {_row(costs, steps)} |")


def _row(costs: list[tuple[Cost, Cost]], steps: int) -> str:
    """Cells of a method, from its cost and that of Scala in each round."""
    step_s = statistics.median(cost.step_s for cost, _ in costs)
    ratios = [cost.step_s / scala.step_s for cost, scala in costs]
    cells = (
        f"{1000 * step_s:.0f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        f"{steps * step_s / 60:.1f}",
        f"{statistics.median(cost.peak_mib for cost, _ in costs):.0f}",
        f"{costs[0][0].stored_m:.2f}",
    )
    return " | ".join(cells)


if __name__ == "__main__":
    main()
