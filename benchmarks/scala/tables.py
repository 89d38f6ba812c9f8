"""What the study found, as Markdown tables with their spread over the seeds. All figures are per cent or points."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scala.plan import COMMON, GRIDS, HEAD_DIM, OFFICIAL, SCALA, SMALLEST

Json = dict[str, Any]
Entries = Mapping[str, Json]
Runs = dict[int, dict[int, float]]
"""Accuracies of an arm by seed and width of a head."""

_QUARTERS = (8, 16, 24, 32)

_PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "isolated activation": (1.4, 1.9, 1.3, 0.3),
    "progressive transfer": (5.7, 2.7, 1.6, -0.1),
    "stable sampling": (0.0, 0.2, 0.2, 0.2),
    "noise calibration": (8.5, 1.1, 0.6, -0.2),
}
"""What each part gained at a quarter, half, three quarters of the width and the whole: DeiT-S on ImageNet, 100 epochs,
13 widths (Zhang et al. 2024, table 7)."""


_WITHOUT: Mapping[str, str] = {
    "progressive transfer": "whole network teaches all",
    "stable sampling": "no stable sampling",
    "noise calibration": "no noise calibration",
}
"""The arm that lacks a part."""


def tables(entries: Entries) -> str:
    """All tables for which something has run."""
    arms = runs_by_arm(entries)
    parts = {
        "Accuracy by width": accuracy_table(arms),
        "What each part of Scala gains": gains_table(arms),
        "Widths that training never saw": unseen_table(arms),
        "Every head dimension": every_width_table(arms),
        "Time": time_table(entries),
    }
    return "\n\n".join(f"## {title}\n\n{table}" for title, table in parts.items() if table)


def runs_by_arm(entries: Entries) -> dict[str, Runs]:
    """Accuracies in per cent."""
    arms: dict[str, Runs] = {}
    for entry in entries.values():
        known = {int(head_dim): 100 * accuracy for head_dim, accuracy in entry["accuracies"].items()}
        arms.setdefault(entry["arm"], {})[entry["seed"]] = known
    return arms


def accuracy_table(arms: Mapping[str, Runs]) -> str:
    """Every arm at the 13 common widths, whether it trained them or not."""
    head = ["arm", "seeds", *(f"{head_dim / HEAD_DIM:g}" for head_dim in COMMON), "mean"]
    rows = []
    for arm, runs in arms.items():
        shown = [_spread([run[d] for run in runs.values() if d in run]) for d in COMMON]
        # Arms with another smallest width have no mean that could be compared.
        means = [statistics.fmean(run[d] for d in COMMON) for run in runs.values() if set(COMMON) <= set(run)]
        rows.append([arm, _seeds(runs), *shown, _spread(means)])
    return _table(head, rows)


def gains_table(arms: Mapping[str, Runs]) -> str:
    """Points above the arm without each part, at four widths: here under both slicings, and as published."""
    head = ["part", "slicing", "seeds", *(f"{head_dim / HEAD_DIM:g}" for head_dim in _QUARTERS)]
    rows = []
    for part, published in _PUBLISHED.items():
        for slicing, (whole, without) in _comparisons(part).items():
            pairs = _pairs(arms.get(whole, {}), arms.get(without, {}))
            if pairs:
                gains = [_spread([a[d] - b[d] for a, b in pairs if d in a], sign=True) for d in _QUARTERS]
                rows.append([part, slicing, str(len(pairs)), *gains])
        rows.append([part, "published, ImageNet", "1", *(f"{gain:+.1f}" for gain in published)])
    return _table(head, rows) if any(row[1] != "published, ImageNet" for row in rows) else ""


def _comparisons(part: str) -> dict[str, tuple[str, str]]:
    """Arms with and without a part, by slicing."""
    if part in _WITHOUT:
        arm = _WITHOUT[part]
        return {"head-aligned": (SCALA, arm), "official": (f"{OFFICIAL}, {SCALA}", f"{OFFICIAL}, {arm}")}
    return {
        "head-aligned": ("isolated activation", SCALA),
        "official": (f"{OFFICIAL}, {SCALA}", f"{OFFICIAL}, no isolated activation"),
        "head-aligned, s = 0.5": ("s = 0.5, isolated activation", "s = 0.5"),
        "official, s = 0.5": (f"{OFFICIAL}, s = 0.5", f"{OFFICIAL}, s = 0.5, no isolated activation"),
    }


def unseen_table(arms: Mapping[str, Runs]) -> str:
    """How far widths between those of a grid lie from the line between their neighbours there."""
    head = ["trained widths", "slicing", "seeds", "mean", "worst", "at ratio", "worst of one seed", "mean of all 25"]
    rows = []
    for arm, step in _grids().items():
        runs = arms.get(arm)
        if not runs:
            continue
        deviations = [unseen_deviations(run, step) for run in runs.values()]
        by_width = {d: statistics.fmean(found[d] for found in deviations) for d in deviations[0]}
        worst = min(by_width, key=lambda d: by_width[d])
        rows.append(
            [
                _named(arm).removeprefix(f"{OFFICIAL}, "),
                "official" if arm.startswith(OFFICIAL) else "head-aligned",
                _seeds(runs),
                _spread([statistics.fmean(found.values()) for found in deviations], sign=True),
                f"{by_width[worst]:+.2f}",
                f"{worst / HEAD_DIM:g}",
                f"{min(min(found.values()) for found in deviations):+.2f}",
                _spread([statistics.fmean(run.values()) for run in runs.values()]),
            ]
        )
    return _table(head, rows)


def _grids() -> dict[str, int]:
    """Step in channels of the grids that leave widths out, by arm."""
    steps = {arm: round(step * HEAD_DIM) for arm, step in GRIDS.items() if isinstance(step, float)}
    aligned = {**steps, "7 widths, off grid": steps["7 widths"], SCALA: 2, "isolated activation": 2}
    return aligned | {f"{OFFICIAL}, {arm}": step for arm, step in {**steps, SCALA: 2}.items()}


def _named(arm: str) -> str:
    """What grid it is that an arm of 13 widths is not named after."""
    return arm.replace(SCALA, "13 widths").replace("isolated activation", "13 widths, isolated activation")


def unseen_deviations(run: Mapping[int, float], step: int) -> dict[int, float]:
    """Points above the line between the grid's widths beside each width that is not of the grid."""
    found = {}
    for head_dim in range(SMALLEST, HEAD_DIM + 1):
        below = SMALLEST + (head_dim - SMALLEST) // step * step
        if head_dim != below:
            share = (head_dim - below) / step
            found[head_dim] = run[head_dim] - ((1 - share) * run[below] + share * run[below + step])
    return found


def every_width_table(arms: Mapping[str, Runs]) -> str:
    """Every head dimension from the smallest to the whole, for each grid; a mean over the seeds."""
    shown = {arm: runs for arm in (*_grids(), "every width", f"{OFFICIAL}, every width") if (runs := arms.get(arm))}
    names = [_named(arm) for arm in shown]
    rows = []
    for head_dim in range(SMALLEST, HEAD_DIM + 1):
        cells = [f"{statistics.fmean(run[head_dim] for run in runs.values()):.1f}" for runs in shown.values()]
        rows.append([str(head_dim), *cells])
    if not shown:
        return ""
    return _table(["head dimension", *names], rows) + _every_against_13(arms)


def _every_against_13(arms: Mapping[str, Runs]) -> str:
    pairs = _pairs(arms.get("every width", {}), arms.get(SCALA, {}))
    if not pairs:
        return ""
    gains = [statistics.fmean(every[d] - some[d] for d in COMMON) for every, some in pairs]
    return f"\n\nEvery width trained against 13, mean of the 13 common widths: {_spread(gains, sign=True)} points."


def time_table(entries: Entries) -> str:
    """Minutes of the jobs' stages. Jobs that ran side by side slow each other down; see ``scala_cost.py``."""
    times: dict[str, list[float]] = {}
    for entry in entries.values():
        timings = entry["result"]["timings"] or {}
        trained = timings.get("supernet") or timings.get("separate")
        if trained is not None:
            times.setdefault(entry["arm"], []).append(trained / 60)
    return _table(["arm", "training, min"], [[arm, _spread(minutes)] for arm, minutes in times.items()])


def _pairs(first: Runs, second: Runs) -> list[tuple[dict[int, float], dict[int, float]]]:
    return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]


def _seeds(runs: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(runs)))


def _spread(values: Sequence[float], *, sign: bool = False) -> str:
    """Mean and standard deviation; nothing of a width that an arm does not have."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):{'+' if sign else ''}.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
