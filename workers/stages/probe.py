"""A truth to judge label-free measures by, where labels exist: how well a linear probe reads the classes off a network.

Training dozens of networks for this would cost more than the search.  Instead a ridge regression predicts the classes
from the frozen patch tokens of the inherited weights, and is judged by the share of the labels' variance that it
explains when each image is left out once; all of it has a closed form.  Shares of variance are smoother than
accuracies, which a few images decide.

Legend: N images, F features of an image (all patches times their width), K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.architecture import Architecture
from models.supernet import Supernet
from service.forecast.work import PROBED_IMAGES
from workers.data.dataset import LabelledSet
from workers.stages.context import Json
from workers.stages.judgement import Truth
from workers.stages.search_context import SearchContext
from workers.stages.supernet import load_supernet

MAX_IMAGES = PROBED_IMAGES
"""More labelled images would hardly narrow the intervals, which the number of networks decides."""

MAX_FEATURES = 8192
"""Of an image. Tokens of larger grids are averaged over neighbours first: 1,000 images then take 65 MB, not GBs."""

PENALTIES = tuple(10 ** (k / 2) for k in range(-10, 3))
"""Of which each network takes the best, relative to the features' variance; the ends shrink nothing and everything."""

_MIN_STD = 1e-6  # of a feature that is the same for all images
_BATCH = 256


def probed(ctx: SearchContext, networks: Sequence[Json], data: LabelledSet) -> Truth:
    """Probe networks with their inherited weights.

    Args:
        ctx: after the search.
        networks: entries of the search's outputs.
        data: labelled training images; the holdout must not be among them.
    """
    supernet = load_supernet(ctx)
    explained = []
    for network in networks:
        explained.append(probe(supernet, ctx.space.decode(network["genotype"]), data, ctx))
        ctx.progress(len(explained) / (len(networks) + 1))
    description = "label variance explained by a ridge probe on inherited weights, leaving one image out"
    return Truth(description, "probe", explained)


@torch.inference_mode()
def probe(supernet: Supernet, arch: Architecture, data: LabelledSet, ctx: SearchContext) -> float:
    """How well classes can be read off the tokens of one subnet; see :func:`explained_variance`."""
    backbone = arch.with_classes(0)
    features: list[Tensor] = []
    for images in data.images.batches(_BATCH):
        tokens = supernet.tokens(images.to(ctx.compute.device), backbone)
        features.append(pooled_features(supernet.final_norm(tokens, backbone)[:, 1:]).cpu())
        ctx.poll()
    return explained_variance(torch.cat(features), torch.from_numpy(data.labels), data.classes)


def pooled_features(patches_BPd: Tensor) -> Tensor:
    """Patch tokens of a square grid as one row (B, F) per image, with F at most :data:`MAX_FEATURES` if one token fits.

    Args:
        patches_BPd: tokens of P patches, row by row, without the class token.
    """
    _, patches, width = patches_BPd.shape
    side = min(math.isqrt(patches), max(1, math.isqrt(MAX_FEATURES // width)))
    grid_Bdss = torch.unflatten(patches_BPd.transpose(1, 2), 2, (math.isqrt(patches), -1))
    return F.adaptive_avg_pool2d(grid_Bdss, side).flatten(1)


def explained_variance(features_NF: Tensor, labels_N: Tensor, classes: int) -> float:
    """Share of the variance of the one-hot labels that a ridge regression predicts for images it was not fitted on.

    The prediction without image i follows from the fit with it: ``y - (y - fitted) / (1 - leverage)`` (Hastie,
    Tibshirani, Friedman 2009, equation 7.64), so one fit serves all. Solved by images, as there are often more
    features than images; one eigendecomposition serves all penalties, the intercept is free of them.

    The penalty is the best of :data:`PENALTIES` for these features, relative to the mean variance over all features. A
    fixed one, or one for each feature, lets wide networks overfit more than narrow ones, and their probe then says
    which network is small: on CIFAR-10 it ranked 32 networks against their width with Kendall's tau -0.74.

    Returns:
        At most 1; 0 is as good as the mean, below it is worse.
    """
    x_NF = features_NF.double()
    x_NF = (x_NF - x_NF.mean(dim=0)) / x_NF.std(dim=0).clamp_min(_MIN_STD)
    y_NK = F.one_hot(labels_N, classes).double()
    y_NK = y_NK - y_NK.mean(dim=0)
    images = len(x_NF)
    variances_N, vectors_NN = torch.linalg.eigh(x_NF @ x_NF.T / x_NF.shape[1])
    variances_N = variances_N.clamp_min(0.0)
    targets_NK = vectors_NN.T @ y_NK
    errors = []
    for penalty in PENALTIES:
        kept_N = variances_N / (variances_N + penalty * images)
        leverage_N = vectors_NN.square() @ kept_N + 1 / images
        left_NK = y_NK - vectors_NN @ (kept_N.unsqueeze(1) * targets_NK)
        errors.append(float((left_NK / (1 - leverage_N).unsqueeze(1)).square().mean()))
    return 1 - min(errors) / max(float(y_NK.square().mean()), _MIN_STD)
