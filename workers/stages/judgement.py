"""How well each measure, and each control, ranks networks as a truth does that only labels can tell.

The table is the same whatever the truth is: a probe of inherited weights (``workers.stages.probe``), or accuracies
after retraining. All rows resample the same networks, so that their intervals compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.architecture import Architecture
from search import ranking
from search.fusion import LogRankFusion
from search.honesty import estimate_json
from search.measures import FUSED, Control, Measure
from search.ranking import Estimate
from workers.stages.context import Json
from workers.stages.fitness import control
from workers.stages.search_context import SearchContext
from workers.stages.zero_cost import control_column
from workers.training.streams import numpy_stream


@dataclass(frozen=True, slots=True)
class Truth:
    """What a measure should rank like.

    Attributes:
        description: what it is, in full.
        noun: what it is called in a sentence.
        values: larger is better, one of each network.
    """

    description: str
    noun: str
    values: Sequence[float]


def judge(ctx: SearchContext, networks: Sequence[Json], truth: Truth) -> Json | None:
    """Rank correlations of all measures and controls with a truth.

    Args:
        ctx: of the report.
        networks: entries of the search's outputs, in the order of the truth's values.
        truth: see :class:`Truth`.

    Returns:
        One table with a sentence on the metric that the search followed; None when that has no ranking to judge.
    """
    metric = ctx.spec.search.metric
    assert metric is not None, "filled by service.jobs.resolve"
    figures = _figures(ctx, networks)
    true, params = _column(truth.values), figures[Control.PARAMS]
    rows = {name: _row(ctx, column, params, true) for name, column in figures.items()}
    followed = rows.get(metric)
    if followed is None or followed.kendall is None:
        return None
    return {
        "truth": truth.description,
        "networks": len(networks),
        "values": {"min": min(truth.values), "max": max(truth.values)},
        "metric": metric,
        "measures": [row.to_json(name) for name, row in rows.items()],
        "sentence": _sentence(metric, truth.noun, followed.kendall, followed.gain),
    }


@dataclass(frozen=True, slots=True)
class _Row:
    networks: int
    kendall: Estimate | None
    spearman: Estimate | None
    gain: Estimate | None  # of Kendall's tau over that of the parameter count, on the same networks

    def to_json(self, name: str) -> Json:
        figures = {"kendall": self.kendall, "spearman": self.spearman, "gain_over_params": self.gain}
        return {"name": name, "networks": self.networks} | {k: estimate_json(v) for k, v in figures.items()}


Column = NDArray[np.float64]
"""A figure of each network; NaN where it has none."""


def _figures(ctx: SearchContext, networks: Sequence[Json]) -> dict[str, Column]:
    """Measures that were taken of these networks, their fusion, and the controls; by name, in this order."""
    scores: list[Mapping[str, float | None]] = [network["scores"] for network in networks]
    followed = [metric] if (metric := ctx.spec.search.metric) not in (None, *Measure, FUSED, *Control) else []
    names = [str(name) for name in (*Measure, FUSED, *followed) if any(name in of_one for of_one in scores)]
    figures = {str(name): _column(of_one.get(name) for of_one in scores) for name in names}
    fused = ctx.spec.search.fusion or ()
    if FUSED not in figures and fused and figures.keys() >= set(fused):
        fusion = LogRankFusion(fused, scores)
        figures[FUSED] = _column(fusion.score(of_one) for of_one in scores)
    architectures: list[Architecture] = [ctx.space.decode(network["genotype"]) for network in networks]
    for name in Control:
        figures[name.value] = _column(control(ctx, name, arch) for arch in architectures)
    zero_cost = ctx.spec.search.warm_start_zero_cost
    if zero_cost is not None:
        figures[zero_cost.measure] = _column(control_column(ctx, zero_cost, architectures))
    return figures


def _column(values: Iterable[float | None]) -> Column:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _row(ctx: SearchContext, column: Column, params: Column, truth: Column) -> _Row:
    known = ~np.isnan(column)
    ours, theirs, true = column[known], params[known], truth[known]
    correlation = ranking.rank_correlation(ours, true, numpy_stream(ctx.seed, "report", "bootstrap"))
    gain = ranking.correlation_gain(ours, theirs, true, numpy_stream(ctx.seed, "report", "bootstrap"))
    return _Row(len(ours), correlation.kendall, correlation.spearman, gain)


def _sentence(metric: str, truth: str, kendall: Estimate, gain: Estimate | None) -> str:
    level = f"{ranking.LEVEL:.0%}"
    ranks = f"Score ({metric}) and {truth} agree with Kendall's tau {kendall} ({level} interval)"
    if metric == Control.PARAMS:
        return f"{ranks}."
    if gain is None:
        return f"{ranks}; sizes do not differ enough to compare with."
    if gain.low > 0:
        return f"{ranks}, better than the parameter count by {gain}."
    if gain.high < 0:
        return f"{ranks}, worse than the parameter count by {Estimate(-gain.value, -gain.high, -gain.low)}."
    return f"{ranks}, which is no better than the parameter count: the difference {gain} includes 0."
