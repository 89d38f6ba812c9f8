"""The last stage: the winner is measured on the holdout, once, and the search's own claims are checked."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from statistics import NormalDist
from typing import Generic

from models.templates import model
from search.honesty import Verdict, holdout_check, ranking_checks
from search.ranking import LEVEL
from workers.stages.context import BudgetReached, Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.export import Ctx, export_folder, exported_latency, write_finalist
from workers.stages.finalists import Finalist
from workers.stages.judgement import Truth, judge
from workers.stages.probe import MAX_IMAGES, probed
from workers.stages.search_context import SearchContext
from workers.stages.supervised import EVAL_BATCH
from workers.training.supervised import count_correct

MIN_RETRAINED = 10
"""Fewer networks have no ranking that an interval could tell from chance."""


class ReportStage(Generic[Ctx]):
    """Measures the winner from its exported files, and what else a method has to say for itself.

    Args:
        finalists: the networks of a job, the winner first.
        judge: further outputs of the report.
    """

    name = "report"

    def __init__(
        self, finalists: Callable[[Ctx], list[Finalist]], judge: Callable[[Ctx], Json] = lambda ctx: {}
    ) -> None:
        self._finalists = finalists
        self._judge = judge

    def run(self, ctx: Ctx) -> Json:
        """Returns the holdout accuracy, None without labels, and what ``judge`` gives."""
        winner = self._finalists(ctx)[0]
        judgement = self._judge(ctx)
        holdout = _holdout(ctx, winner)
        if "honesty" in judgement:
            judgement["honesty"].append(holdout_check(holdout).to_json())
        return {"holdout": holdout, **judgement}


def _holdout(ctx: DeliveryContext, winner: Finalist) -> Json | None:
    """Accuracy of the exported winner; the only place that reads the holdout."""
    labels = ctx.dataset.labels
    if labels is None or winner.val is None:
        return None
    data = labels.of(ctx.dataset.holdout)
    network = model.load(export_folder(ctx, winner.n)).to(ctx.compute.device)
    correct = count_correct(network, data, ctx.compute, EVAL_BATCH, ctx.poll_to_finish)
    accuracy = correct / len(data)
    latency = exported_latency(ctx, winner.n)
    write_finalist(ctx, winner, holdout=accuracy, latency=latency and latency["latency_ms"])
    low, high = wilson_interval(correct, len(data))
    return {
        "candidate_n": winner.n,
        "accuracy": accuracy,
        "correct": correct,
        "images": len(data),
        "low": low,
        "high": high,
        "level": LEVEL,
    }


def judge_scores(ctx: SearchContext) -> Json:
    """How well label-free measures ranked, by a probe and by the retrained networks; None without labels."""
    by_probe = None
    try:
        by_probe = _judge_by_probe(ctx)
    except BudgetReached:
        ctx.warn("budget_reached", "The time was up before the score could be judged.")
    checks = [*ctx.outputs["search"]["honesty"], *(check.to_json() for check in ranking_checks(by_probe))]
    for check in checks:
        if check["verdict"] == Verdict.FAILED:
            ctx.warn(f"{check['check']}_check_failed", check["sentence"])
    return {
        "rank_correlation": by_probe,
        "rank_correlation_retrained": judge_by_retraining(ctx),
        "honesty": checks,
    }


def _judge_by_probe(ctx: SearchContext) -> Json | None:
    """Over random networks of the search; None without labels, or when there is no time for it."""
    labels = ctx.dataset.labels
    if labels is None or ctx.budget_reached:
        return None
    sample = ctx.outputs["search"]["sample"]
    return judge(ctx, sample, probed(ctx, sample, labels.of(ctx.dataset.train).first(MAX_IMAGES)))


def judge_by_retraining(ctx: SearchContext) -> Json | None:
    """Over the retrained networks; None when they are too few.

    These are the best by their score, unless the search was a list, so that they show less of its ranking than random
    networks would.
    """
    accuracies = {network["n"]: network["val"] for network in ctx.outputs["retrain"]["networks"]}
    networks = [entry for entry in ctx.outputs["search"]["best"] if entry["n"] in accuracies]
    if len(networks) < MIN_RETRAINED:
        return None
    values = [accuracies[entry["n"]] for entry in networks]
    return judge(ctx, networks, Truth("validation accuracy after retraining", "accuracy after retraining", values))


def wilson_interval(correct: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """Confidence interval of a share (Wilson 1927): unlike the usual one it stays within 0..1 and is never empty."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = correct / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
