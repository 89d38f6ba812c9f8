"""What the study found, as Markdown tables with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from masktas.plan import Scale, given_networks
from models.architecture import Genotype
from search.ranking import LEVEL, Estimate, correlation_gain, rank_correlation

Json = dict[str, Any]
Entries = Mapping[str, Json]

_CONTROLS = ("params_m", "gmacs", "width", "random")


def tables(scale: Scale, entries: Entries) -> str:
    """All tables."""
    return (
        f"## Ablation, scale {scale.name}\n\n{ablation_table(scale, entries)}\n\n"
        f"## Rank correlation with stand-alone accuracy\n\n{correlation_tables(scale, entries)}"
    )


def ablation_table(scale: Scale, entries: Entries) -> str:
    """Accuracy of each arm's network on the holdout: mean and standard deviation over the seeds."""
    arms: dict[str, list[Json]] = {}
    for entry in entries.values():
        if not entry["arm"].startswith(("standalone", "scores")):
            arms.setdefault(entry["arm"], []).append(entry)
    lines = [
        "| arm | seeds | holdout accuracy, % | validation accuracy, % | parameters, M | pretraining, min |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm, runs in arms.items():
        holdout = [100 * run["result"]["holdout"]["accuracy"] for run in runs]
        val = [100 * run["result"]["best"]["accuracy"]["val"] for run in runs]
        params = [run["result"]["best"]["costs"]["params_m"] for run in runs]
        minutes = [run["result"]["timings"].get("supernet", 0.0) / 60 for run in runs]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        cells = (arm, seeds, _spread(holdout), _spread(val), _spread(params, 3), _spread(minutes, 1))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def correlation_tables(scale: Scale, entries: Entries) -> str:
    """Kendall's tau of every measure and control with stand-alone accuracies, for each set of networks and seed."""
    parts = []
    for where, genotypes in given_networks(scale).items():
        truth = standalone_accuracies(entries, where)
        known = [genotype for genotype in genotypes if genotype in truth]
        if len(known) < 3:
            continue
        parts += [f"### {where}: {len(known)} networks\n", _ceiling(entries, where, known), ""]
        parts += [_correlations(entries, known, truth), ""]
    return "\n".join(parts)


def standalone_accuracies(entries: Entries, where: str) -> dict[Genotype, float]:
    """Validation accuracy of each network after training on its own, a mean over the seeds that have it."""
    found: dict[Genotype, list[float]] = {}
    for accuracies in _by_seed(entries, where).values():
        for genotype, accuracy in accuracies.items():
            found.setdefault(genotype, []).append(accuracy)
    return {genotype: statistics.fmean(values) for genotype, values in found.items()}


def _by_seed(entries: Entries, where: str) -> dict[int, dict[Genotype, float]]:
    return {
        entry["seed"]: {_genotype(c): c["accuracy"]["val"] for c in entry["candidates"] if c["accuracy"] is not None}
        for entry in entries.values()
        if entry["arm"] == f"standalone {where}"
    }


def _ceiling(entries: Entries, where: str, known: Sequence[Genotype]) -> str:
    """How far the networks lie apart, and how well one training predicts another of the same network."""
    seeds = _by_seed(entries, where)
    means = [statistics.fmean(run[genotype] for run in seeds.values() if genotype in run) for genotype in known]
    told = f"Accuracies from {100 * min(means):.1f} to {100 * max(means):.1f} %"
    if len(seeds) < 2:
        return f"{told}; trained once, so the noise of a training is not known."
    first, second = (seeds[seed] for seed in sorted(seeds)[:2])
    both = [genotype for genotype in known if genotype in first and genotype in second]
    pairs = [100 * (first[genotype] - second[genotype]) for genotype in both]
    noise = statistics.stdev(pairs) / 2**0.5
    repeated = rank_correlation([first[g] for g in both], [second[g] for g in both], np.random.default_rng(0))
    return (
        f"{told}, a mean of {len(seeds)} trainings. One training has a standard deviation of {noise:.2f} points; "
        f"two of them agree on the order with Kendall's tau {_estimate(repeated.kendall)}."
    )


def _correlations(entries: Entries, known: Sequence[Genotype], truth: Mapping[Genotype, float]) -> str:
    accuracies = [truth[genotype] for genotype in known]
    lines = [
        f"| measure | seed | Kendall's tau [{LEVEL:.0%}] | Spearman's rho | gain over the parameter count |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in entries.values():
        if not entry["arm"].startswith("scores"):
            continue
        rows = {_genotype(candidate): candidate for candidate in entry["candidates"]}
        if any(genotype not in rows for genotype in known):
            continue
        params = [rows[genotype]["costs"]["params_m"] for genotype in known]
        variant = entry["arm"].removeprefix("scores").removeprefix(", ")
        columns = {name: [rows[g]["scores"][name] for g in known] for name in rows[known[0]]["scores"]}
        columns |= _fused(columns)
        if not variant and entry["seed"] == min(e["seed"] for e in entries.values()):
            columns |= _controls(known, rows)
        for name, values in columns.items():
            label = f"{name} ({variant})" if variant else name
            seed = "" if name in _CONTROLS else str(entry["seed"])
            lines.append(_row(label, seed, values, params, accuracies))
    return "\n".join(lines)


def _fused(columns: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Log-rank fusion of consistency and reconstruction among these networks."""
    parts = [np.argsort(np.argsort(columns[name])) for name in ("consistency", "reconstruction") if name in columns]
    if len(parts) < 2:
        return {}
    return {"fused": [float(score) for score in sum(np.log((ranks + 1) / len(ranks)) for ranks in parts)]}


def _controls(known: Sequence[Genotype], rows: Mapping[Genotype, Json]) -> dict[str, list[float]]:
    rng = np.random.default_rng(4)
    return {
        "params_m": [rows[genotype]["costs"]["params_m"] for genotype in known],
        "gmacs": [rows[genotype]["costs"]["gmacs"] for genotype in known],
        "width": [float(genotype[-1]) for genotype in known],
        "random": list(rng.random(len(known))),
    }


def _row(name: str, seed: str, values: Sequence[float], params: Sequence[float], truth: Sequence[float]) -> str:
    rng = np.random.default_rng(0)
    found = rank_correlation(values, truth, rng)
    gain = correlation_gain(values, params, truth, rng)
    return f"| {name} | {seed} | {_estimate(found.kendall)} | {_estimate(found.spearman)} | {_estimate(gain)} |"


def _estimate(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _genotype(candidate: Json) -> Genotype:
    depth = int(candidate["genotype"][0])
    genes = candidate["genotype"]
    return (depth, *genes[1 : 1 + depth], *(int(heads) for heads in genes[1 + depth : -1]), int(genes[-1]))


def _spread(values: Sequence[float], digits: int = 2) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.{digits}f} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"
