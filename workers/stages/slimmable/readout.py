"""What the features of a frozen network are worth: classes read off them linearly, or by their nearest neighbours.

Legend: N training images, M images to classify, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.data.dataset import LabelledSet
from workers.stages.probe import PENALTIES
from workers.training.compute import Compute
from workers.training.parts import in_parts_that_fit

TEMPERATURE = 0.07
"""Of the votes of neighbours (Wu et al. 2018, section 3.4; Caron et al. 2021, DINO, section 4.1)."""

_MIN_STD = 1e-6  # of a feature that is the same for all images
_CHUNK = 1024  # images whose similarities are held at a time


@torch.inference_mode()
def features(
    network: nn.Module, data: LabelledSet, compute: Compute, batch_size: int, poll: Callable[[], None]
) -> Tensor:
    """What a network without a head gives for all images in order, (N, F) on the CPU, float32."""
    network = network.to(compute.device).eval()
    rows = []
    for images in data.images.batches(batch_size):
        with compute.forward():
            rows.append(in_parts_that_fit(lambda part: network(part.to(compute.device)).float().cpu(), images))
        poll()
    return torch.cat(rows)


def linear_probe(train_NF: Tensor, labels_N: Tensor, test_MF: Tensor, classes: int) -> Tensor:
    """Classes (M,) that a ridge regression on one-hot labels predicts.

    Features are standardised. The penalty is the one of :data:`workers.stages.probe.PENALTIES` with the least squared
    error when each training image is left out once, which has a closed form (Hastie, Tibshirani, Friedman 2009,
    equation 7.64); one eigendecomposition of F by F serves all penalties.
    """
    mean_F, std_F = train_NF.double().mean(dim=0), train_NF.double().std(dim=0).clamp_min(_MIN_STD)
    x_NF = (train_NF.double() - mean_F) / std_F
    y_NK = F.one_hot(labels_N, classes).double()
    shares_K = y_NK.mean(dim=0)
    y_NK = y_NK - shares_K
    images, width = x_NF.shape
    variances_F, vectors_FF = torch.linalg.eigh(x_NF.T @ x_NF / width)
    rotated_NF = x_NF @ vectors_FF
    moments_FK = rotated_NF.T @ y_NK / width
    best: tuple[float, Tensor] | None = None
    for penalty in PENALTIES:
        shrunk_F = 1 / (variances_F.clamp_min(0.0) + penalty * images)
        weights_FK = shrunk_F.unsqueeze(1) * moments_FK
        leverage_N = rotated_NF.square() @ shrunk_F / width + 1 / images
        left_NK = (y_NK - rotated_NF @ weights_FK) / (1 - leverage_N).unsqueeze(1)
        error = float(left_NK.square().mean())
        if best is None or error < best[0]:
            best = error, vectors_FF @ weights_FK
    assert best is not None, "there are penalties"
    scores_MK = ((test_MF.double() - mean_F) / std_F) @ best[1] + shares_K
    return scores_MK.argmax(dim=1)


def nearest_neighbours(train_NF: Tensor, labels_N: Tensor, test_MF: Tensor, classes: int, k: int) -> Tensor:
    """Classes (M,) by the votes of the ``k`` most similar training images (or all, if they are fewer).

    Similarity is the cosine; a vote weighs ``exp(similarity / TEMPERATURE)``.
    """
    train_NF, test_MF = F.normalize(train_NF, dim=1), F.normalize(test_MF, dim=1)
    predicted = []
    for start in range(0, len(test_MF), _CHUNK):
        chunk = test_MF[start : start + _CHUNK]
        similar, places = (chunk @ train_NF.T).topk(min(k, len(train_NF)), dim=1)
        votes = (similar / TEMPERATURE).exp()
        predicted.append((F.one_hot(labels_N[places], classes) * votes.unsqueeze(2)).sum(dim=1).argmax(dim=1))
    return torch.cat(predicted)
