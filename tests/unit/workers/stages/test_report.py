from __future__ import annotations

import pytest
import torch

from workers.stages.probe import MAX_FEATURES, explained_variance, pooled_features
from workers.stages.report import wilson_interval


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (10, 100, 0.0552, 0.1744), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_agrees_with_published_values(correct: int, total: int, low: float, high: float) -> None:
    # The last one is Newcombe's example (Statistics in Medicine 17, 1998, table I).
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def test_explained_variance_equals_fitting_without_each_image() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (30,), generator=generator)
    features = torch.randn(30, 4, generator=generator) + 0.8 * torch.nn.functional.one_hot(labels, 4)
    x = features.double()
    x = torch.cat(((x - x.mean(0)) / x.std(0), torch.ones(30, 1, dtype=torch.float64)), dim=1)
    y = torch.nn.functional.one_hot(labels, 3).double()
    squared = 0.0
    for i in range(30):
        rest = torch.arange(30) != i
        gram = x[rest].T @ x[rest] + 0.1 * 30 * torch.eye(5, dtype=torch.float64)
        weights = torch.linalg.solve(gram, x[rest].T @ y[rest])
        squared += (y[i] - x[i] @ weights).square().sum().item()
    expected = 1 - squared / (y - y.mean(0)).square().sum().item()
    assert 0 < expected < 1
    assert explained_variance(features, labels, 3) == pytest.approx(expected, abs=1e-9)


def test_features_without_information_explain_nothing() -> None:
    labels = torch.arange(20) % 2
    assert explained_variance(torch.ones(20, 3), labels, 2) == pytest.approx(0.0, abs=0.15)


def test_small_grids_keep_every_token_and_large_ones_are_averaged_over_neighbours() -> None:
    small = torch.randn(2, 16, 96)
    assert pooled_features(small).shape == (2, 16 * 96)
    assert sorted(pooled_features(small)[0].tolist()) == sorted(small[0].flatten().tolist())
    rows = torch.arange(14.0).repeat_interleave(14).reshape(1, 196, 1).expand(1, 196, 2000)
    large = pooled_features(rows)
    assert large.shape[1] <= MAX_FEATURES
    assert large.reshape(2000, 2, 2)[0].tolist() == [[3.0, 3.0], [10.0, 10.0]]
