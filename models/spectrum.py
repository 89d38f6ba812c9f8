"""In how many directions features vary: their effective rank.

Legend: M vectors, d their width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Moments:
    """First and second moments of vectors that come in batches, in float64, in the order in which they come."""

    def __init__(self) -> None:
        self._count = 0
        self._sum_d: Tensor | None = None
        self._products_dd: Tensor | None = None

    def add(self, x_Md: Tensor) -> None:
        """Take in vectors (M, d), of the same width as those before."""
        x_Md = x_Md.double()
        total_d, products_dd = x_Md.sum(dim=0), x_Md.T @ x_Md
        self._sum_d = total_d if self._sum_d is None else self._sum_d + total_d
        self._products_dd = products_dd if self._products_dd is None else self._products_dd + products_dd
        self._count += len(x_Md)

    def covariance(self) -> Tensor:
        """Covariance (d, d), divided by the number of vectors.

        Raises:
            ValueError: there were no vectors.
        """
        if self._sum_d is None or self._products_dd is None:
            raise ValueError("no vectors were added")
        mean_d = self._sum_d / self._count
        return self._products_dd / self._count - torch.outer(mean_d, mean_d)


def effective_rank(covariance_dd: Tensor) -> float:
    """The exponential of the entropy of the normalised eigenvalues: 1 to d; NaN when nothing varies.

    Roy and Vetterli (2007) define it for the singular values of a matrix; these are the squares of those of the centred
    vectors, so that each direction counts by its share of the variance. RankMe (Garrido et al. 2023) ranks
    self-supervised networks by a like figure, without labels.
    """
    if not torch.isfinite(covariance_dd).all():
        return math.nan
    variances_d = torch.linalg.eigvalsh(covariance_dd.cpu()).clamp_min(0)
    total = variances_d.sum()
    if not total > 0:
        return math.nan
    shares_d = variances_d / total
    return math.exp(torch.special.entr(shares_d).sum().item())
