"""Effective rank of features."""

from __future__ import annotations

import math

import pytest
import torch

from models.spectrum import Moments, effective_rank


def vectors(count: int, width: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1))


def test_directions_of_equal_variance_count_one_each() -> None:
    assert effective_rank(torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0]))) == pytest.approx(3.0)


def test_a_direction_counts_by_the_entropy_of_its_share_of_the_variance() -> None:
    entropy = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert effective_rank(torch.diag(torch.tensor([9.0, 1.0]))) == pytest.approx(math.exp(entropy))


def test_it_does_not_see_rotation_scale_or_shift() -> None:
    x = vectors(200, 8) * torch.arange(1.0, 9.0)
    rotation = torch.linalg.qr(vectors(8, 8)).Q
    found = []
    for seen in (x, 3 * (x @ rotation) + 5):
        moments = Moments()
        moments.add(seen)
        found.append(effective_rank(moments.covariance()))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_batches_give_the_covariance_of_all_vectors() -> None:
    x = vectors(50, 5)
    moments = Moments()
    for part in x.split(7):
        moments.add(part)
    assert torch.allclose(moments.covariance(), torch.cov(x.double().T, correction=0))


def test_features_that_do_not_vary_or_are_no_numbers_have_none() -> None:
    assert math.isnan(effective_rank(torch.zeros(3, 3)))
    assert math.isnan(effective_rank(torch.full((3, 3), torch.nan)))


def test_no_vectors_have_no_covariance() -> None:
    with pytest.raises(ValueError, match="no vectors"):
        Moments().covariance()
