from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.unit.workers.training.toys import CPU, images
from workers.data.dataset import LabelledSet
from workers.training.schedule import BatchOrder
from workers.training.streams import torch_stream
from workers.training.supervised import Augmentation, LabelledBatches, Supervised, count_correct


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_shift_moves_and_repeats_the_border() -> None:
    x = torch.arange(64.0).view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    shifted = Augmentation(max_shift=0.25).apply(x, seeded())
    allowed = [
        F.pad(x[:1], (2, 2, 2, 2), mode="replicate")[:, :, top : top + 8, left : left + 8]
        for top in range(5)
        for left in range(5)
    ]
    found = {next(i for i, a in enumerate(allowed) if torch.equal(a[0], image)) for image in shifted}
    assert found == set(range(25))


def test_flip_mirrors_about_half_of_the_images() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4).repeat(400, 1, 1, 1)
    flipped = Augmentation(horizontal_flip=True).apply(x, seeded())
    mirrored = (flipped == x.flip(-1)).flatten(1).all(dim=1)
    untouched = (flipped == x).flatten(1).all(dim=1)
    assert (mirrored | untouched).all()
    assert 150 < mirrored.sum() < 250


def test_no_augmentation_changes_nothing() -> None:
    x = torch.rand(3, 3, 5, 5, generator=seeded())
    assert torch.equal(Augmentation().apply(x, seeded()), x)


@pytest.fixture
def data() -> LabelledSet:
    return LabelledSet(images(), np.arange(40) % 3, 3)


class Constant(nn.Module):
    """Always sees class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(len(x), -1)


def test_count_correct_counts_over_all_batches(data: LabelledSet) -> None:
    assert count_correct(Constant(), data, CPU, batch_size=7) == 13


def test_batches_keep_images_and_labels_together(data: LabelledSet) -> None:
    order = BatchOrder(len(data), 5, 0, ("retrain", 1))
    batch = LabelledBatches(data, order, CPU).at(3)
    positions = order.positions(3)
    assert torch.equal(batch.images, data.images.batch(positions))
    assert batch.labels.tolist() == (positions % 3).tolist()


def test_loss_is_smoothed_cross_entropy_on_augmented_images(data: LabelledSet) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    augmentation = Augmentation(max_shift=0.25)
    objective = Supervised(network, augmentation, label_smoothing=0.2, seed=5, stage=("retrain", 1))
    batch = LabelledBatches(data, BatchOrder(len(data), 5, 0, ("retrain", 1)), CPU).at(0)
    seen = augmentation.apply(batch.images, torch_stream(5, "retrain", 1, "augment", 9))
    expected = F.cross_entropy(network(seen), batch.labels, label_smoothing=0.2)
    torch.testing.assert_close(next(objective.losses(batch, 9)).total, expected)
