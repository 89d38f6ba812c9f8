"""The last stage: the winner is measured on the holdout, once, and the search's own claims are checked."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from models.templates import model
from search.ranking import LEVEL
from workers.stages.context import BudgetReached, Json
from workers.stages.export import Finalist, export_folder, finalists, write_finalist
from workers.stages.probe import MAX_IMAGES, judge_score
from workers.stages.retrain import EVAL_BATCH
from workers.stages.search_context import SearchContext
from workers.training.supervised import count_correct


class ReportStage:
    """Measures the winner from its exported files, and how well the score ranked where labels can tell."""

    name = "report"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the holdout accuracy and the rank correlation; both None without labels."""
        winner = finalists(ctx)[0]
        judgement = None
        labels = ctx.dataset.labels
        if labels is not None and not ctx.budget_reached:
            try:
                judgement = judge_score(ctx, labels.of(ctx.dataset.train).first(MAX_IMAGES))
            except BudgetReached:
                ctx.warn("budget_reached", "The time was up before the score could be judged.")
        return {"holdout": self._holdout(ctx, winner), "rank_correlation": judgement}

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


def wilson_interval(correct: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """Confidence interval of a share (Wilson 1927): unlike the usual one it stays within 0..1 and is never empty."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = correct / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    reach = z / (1 + z**2 / total) * sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
