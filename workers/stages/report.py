"""The last stage: the winner is measured on the holdout, once, and the search's own claims are checked."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from models.templates import model
from search.ranking import LEVEL
from workers.stages.context import BudgetReached, Json
from workers.stages.export import Finalist, export_folder, finalists, write_finalist
from workers.stages.judgement import Truth, judge
from workers.stages.probe import MAX_IMAGES, probed
from workers.stages.retrain import EVAL_BATCH
from workers.stages.search_context import SearchContext
from workers.training.supervised import count_correct

MIN_RETRAINED = 10
"""Fewer networks have no ranking that an interval could tell from chance."""


class ReportStage:
    """Measures the winner from its exported files, and how well the score ranked where labels can tell."""

    name = "report"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the holdout accuracy and how well measures rank; None without labels."""
        winner = finalists(ctx)[0]
        judgement = None
        try:
            judgement = _judge_by_probe(ctx)
        except BudgetReached:
            ctx.warn("budget_reached", "The time was up before the score could be judged.")
        return {
            "holdout": self._holdout(ctx, winner),
            "rank_correlation": judgement,
            "rank_correlation_retrained": judge_by_retraining(ctx),
        }

    def _holdout(self, ctx: SearchContext, winner: Finalist) -> Json | None:
        """Accuracy of the exported winner; the only place that reads the holdout."""
        labels = ctx.dataset.labels
        if labels is None or winner.val is None:
            return None
        data = labels.of(ctx.dataset.holdout)
        network = model.load(export_folder(ctx, winner.n)).to(ctx.compute.device)
        correct = count_correct(network, data, ctx.compute, EVAL_BATCH, ctx.poll_to_finish)
        accuracy = correct / len(data)
        write_finalist(ctx, winner, holdout=accuracy)
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
