"""Reading classes off features, against fits that are made the long way."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workers.stages.probe import PENALTIES
from workers.stages.slimmable.readout import TEMPERATURE, linear_probe, nearest_neighbours


def informative(images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (images,), generator=generator)
    return torch.randn(images, 5, generator=generator) + F.one_hot(labels, 5), labels


def ridge(x: torch.Tensor, y: torch.Tensor, penalty: float) -> torch.Tensor:
    """Weights with an intercept, in the last row, that is not shrunk."""
    shrunk = torch.diag(torch.tensor([penalty] * (x.shape[1] - 1) + [0.0], dtype=torch.float64))
    return torch.linalg.solve(x.T @ x + shrunk, x.T @ y)


def test_the_linear_probe_is_the_ridge_regression_that_predicts_left_out_images_best() -> None:
    features, labels = informative(40, 0)
    test, _ = informative(60, 1)
    mean, std = features.double().mean(0), features.double().std(0)

    def standard(rows: torch.Tensor) -> torch.Tensor:
        scaled = (rows.double() - mean) / std / features.shape[1] ** 0.5
        return torch.cat((scaled, torch.ones(len(rows), 1, dtype=torch.float64)), dim=1)

    x, y = standard(features), F.one_hot(labels, 3).double()
    rest = [torch.arange(40) != i for i in range(40)]
    errors = {
        penalty: sum(
            (y[i] - x[i] @ ridge(x[keep], y[keep], penalty * 40)).square().sum() for i, keep in enumerate(rest)
        )
        for penalty in PENALTIES
    }
    best = min(errors, key=lambda penalty: float(errors[penalty]))
    expected = (standard(test) @ ridge(x, y, best * 40)).argmax(dim=1)
    assert torch.equal(linear_probe(features, labels, test, 3), expected)


def test_neighbours_vote_by_their_similarity() -> None:
    features, labels = informative(50, 2)
    test, _ = informative(20, 3)
    expected = []
    for row in test:
        similar = F.cosine_similarity(row.unsqueeze(0), features)
        votes = torch.zeros(3)
        for place in similar.argsort(descending=True)[:7]:
            votes[labels[place]] += (similar[place] / TEMPERATURE).exp()
        expected.append(int(votes.argmax()))
    assert nearest_neighbours(features, labels, test, 3, k=7).tolist() == expected


def test_more_neighbours_than_images_are_all_of_them() -> None:
    features, labels = torch.eye(3), torch.tensor([2, 2, 0])
    assert nearest_neighbours(features, labels, torch.ones(1, 3), 3, k=100).tolist() == [2]
