from __future__ import annotations

import pytest
import torch

from workers.stages.probe import MAX_FEATURES, PENALTIES, explained_variance, pooled_features
from workers.stages.report import wilson_interval


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (10, 100, 0.0552, 0.1744), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_agrees_with_published_values(correct: int, total: int, low: float, high: float) -> None:
    # The last one is Newcombe's example (Statistics in Medicine 17, 1998, table I).
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def explained_by_refitting(features: torch.Tensor, labels: torch.Tensor, penalty: float) -> float:
    """Each image left out once, by fitting anew with an intercept that is not shrunk."""
    x = features.double()
    count, width = x.shape
    x = torch.cat(((x - x.mean(0)) / x.std(0) / width**0.5, torch.ones(count, 1, dtype=torch.float64)), dim=1)
    shrunk = torch.diag(torch.tensor([penalty * count] * width + [0.0], dtype=torch.float64))
    y = torch.nn.functional.one_hot(labels, 3).double()
    squared = 0.0
    for i in range(count):
        rest = torch.arange(count) != i
        weights = torch.linalg.solve(x[rest].T @ x[rest] + shrunk, x[rest].T @ y[rest])
        squared += (y[i] - x[i] @ weights).square().sum().item()
    return 1 - squared / (y - y.mean(0)).square().sum().item()


def informative(images: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 3, (images,), generator=generator)
    noise = torch.randn(images, 4, generator=generator)
    return noise + 0.8 * torch.nn.functional.one_hot(labels, 4), labels


def test_explained_variance_is_the_best_of_fitting_without_each_image() -> None:
    features, labels = informative(30, torch.Generator().manual_seed(0))
    expected = max(explained_by_refitting(features, labels, penalty) for penalty in PENALTIES)
    assert 0 < expected < 1
    assert explained_variance(features, labels, 3) == pytest.approx(expected, abs=1e-9)


def test_repeated_features_explain_neither_more_nor_less() -> None:
    features, labels = informative(60, torch.Generator().manual_seed(1))
    once = explained_variance(features, labels, 3)
    assert explained_variance(features.repeat(1, 50), labels, 3) == pytest.approx(once, abs=1e-9)


def test_a_wide_network_does_not_lose_by_its_width() -> None:
    """Ten noisy views of the same few factors tell at least what one view tells."""
    generator = torch.Generator().manual_seed(2)
    factors, labels = informative(120, generator)
    views = [factors @ torch.randn(4, 32, generator=generator) for _ in range(10)]
    noisy = [view + 2 * torch.randn(120, 32, generator=generator) for view in views]
    assert explained_variance(torch.cat(noisy, dim=1), labels, 3) > explained_variance(noisy[0], labels, 3)


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
