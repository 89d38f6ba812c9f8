"""Judges the label-free score where labels exist: does it rank networks as a linear probe of their features does?

Training dozens of networks for this would cost more than the search. A ridge classifier on frozen features of the
inherited weights is a common stand-in, solved in closed form; its accuracy is that of leaving each image out once.

Legend: N images, d width of the features, K classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.architecture import Architecture
from models.supernet import Supernet
from search import ranking
from search.ranking import Estimate, RankCorrelation
from workers.data.dataset import LabelledSet
from workers.stages.context import Json
from workers.stages.search import load_supernet
from workers.stages.search_context import SearchContext
from workers.training.streams import numpy_stream

MAX_IMAGES = 4000
"""More labelled images would hardly narrow the intervals, which the number of networks decides."""

_RIDGE = 1e-2  # relative to the features' variance, which is 1
_BATCH = 256


def judge_score(ctx: SearchContext, data: LabelledSet) -> Json | None:
    """Rank correlation of score and of size with probe accuracy, over random networks of the search.

    Args:
        ctx: after the search.
        data: labelled training images; the holdout must not be among them.

    Returns:
        Figures and a sentence; None when the search scored fewer than three random networks.
    """
    sample = ctx.outputs["search"]["sample"]
    supernet = load_supernet(ctx)
    accuracies = []
    for entry in sample:
        accuracies.append(probe_accuracy(supernet, ctx.space.decode(entry["genotype"]), data, ctx))
        ctx.progress(len(accuracies) / (len(sample) + 1))
    scores = [entry["score"] for entry in sample]
    params = [entry["costs"]["params_m"] for entry in sample]
    rng = numpy_stream(ctx.seed, "report", "bootstrap")
    by_score = ranking.rank_correlation(scores, accuracies, rng)
    if by_score.kendall is None:
        return None
    by_params = ranking.rank_correlation(params, accuracies, rng)
    gain = ranking.correlation_gain(scores, params, accuracies, rng)
    return {
        "truth": "leave-one-out accuracy of a ridge probe on inherited weights",
        "networks": len(sample),
        "accuracy": {"min": min(accuracies), "max": max(accuracies)},
        "score": _correlation(by_score),
        "params": _correlation(by_params),
        "gain_over_params": _estimate(gain),
        "sentence": _sentence(by_score.kendall, gain),
    }


@torch.inference_mode()
def probe_accuracy(supernet: Supernet, arch: Architecture, data: LabelledSet, ctx: SearchContext) -> float:
    """Leave-one-out accuracy of a ridge classifier on the pooled features of one subnet."""
    features: list[Tensor] = []
    for images in data.images.batches(_BATCH):
        features.append(supernet(images.to(ctx.compute.device), arch.with_classes(0)).cpu())
        ctx.poll()
    return leave_one_out_accuracy(torch.cat(features), torch.from_numpy(data.labels), data.classes)


def leave_one_out_accuracy(features_Nd: Tensor, labels_N: Tensor, classes: int) -> float:
    """Share of images that a ridge classifier fitted on all others puts into their class.

    The prediction without image i follows from the fit with it: ``y - (y - fitted) / (1 - leverage)`` (Hastie,
    Tibshirani, Friedman 2009, equation 7.64), so one fit serves all.
    """
    x_Nd = features_Nd.double()
    x_Nd = (x_Nd - x_Nd.mean(dim=0)) / x_Nd.std(dim=0).clamp_min(1e-12)
    x_Nd = torch.cat((x_Nd, torch.ones(len(x_Nd), 1, dtype=x_Nd.dtype)), dim=1)
    y_NK = F.one_hot(labels_N, classes).double()
    gram = x_Nd.T @ x_Nd + _RIDGE * len(x_Nd) * torch.eye(x_Nd.shape[1], dtype=x_Nd.dtype)
    solved_dN = torch.linalg.solve(gram, x_Nd.T)
    leverage_N1 = (x_Nd * solved_dN.T).sum(dim=1, keepdim=True)
    left_out_NK = y_NK - (y_NK - x_Nd @ (solved_dN @ y_NK)) / (1 - leverage_N1)
    return int((left_out_NK.argmax(dim=1) == labels_N).sum()) / len(labels_N)


def _correlation(correlation: RankCorrelation) -> Json:
    return {"kendall": _estimate(correlation.kendall), "spearman": _estimate(correlation.spearman)}


def _estimate(estimate: Estimate | None) -> Json | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _sentence(by_score: Estimate, gain: Estimate | None) -> str:
    level = f"{ranking.LEVEL:.0%}"
    ranks = f"Score and probe accuracy agree with Kendall's tau {by_score} ({level} interval)"
    if gain is None:
        return f"{ranks}; sizes do not differ enough to compare with."
    if gain.low > 0:
        return f"{ranks}, better than the parameter count by {gain}."
    if gain.high < 0:
        return f"{ranks}, worse than the parameter count by {Estimate(-gain.value, -gain.high, -gain.low)}."
    return f"{ranks}, which is no better than the parameter count: the difference {gain} includes 0."
