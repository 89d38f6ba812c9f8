from __future__ import annotations

import pytest
import torch

from workers.stages.probe import leave_one_out_accuracy
from workers.stages.report import wilson_interval


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (10, 100, 0.0552, 0.1744), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_agrees_with_published_values(correct: int, total: int, low: float, high: float) -> None:
    # The last one is Newcombe's example (Statistics in Medicine 17, 1998, table I).
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def test_leave_one_out_equals_fitting_without_each_image() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (30,), generator=generator)
    features = torch.randn(30, 4, generator=generator) + 0.8 * torch.nn.functional.one_hot(labels, 4)
    x = features.double()
    x = torch.cat(((x - x.mean(0)) / x.std(0), torch.ones(30, 1, dtype=torch.float64)), dim=1)
    y = torch.nn.functional.one_hot(labels, 3).double()
    correct = 0
    for i in range(30):
        rest = torch.arange(30) != i
        gram = x[rest].T @ x[rest] + 1e-2 * 30 * torch.eye(5, dtype=torch.float64)
        weights = torch.linalg.solve(gram, x[rest].T @ y[rest])
        correct += int((x[i] @ weights).argmax() == labels[i])
    assert 0 < correct < 30
    assert leave_one_out_accuracy(features, labels, 3) == correct / 30
