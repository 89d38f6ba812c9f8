from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.unit.workers.training.toys import CPU, UNCHANGED, images
from workers.data.dataset import LabelledSet
from workers.training.augment import random_shift
from workers.training.crops import RandomCrop
from workers.training.schedule import BatchOrder
from workers.training.streams import torch_stream
from workers.training.supervised import Augmentation, LabelledBatches, Supervised, count_correct

NO_AUGMENTATION = Augmentation(0.0, UNCHANGED)


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
    batch = LabelledBatches(data, order, NO_AUGMENTATION, CPU).at(3)
    positions = order.positions(3)
    assert torch.equal(batch.images, data.images.batch(positions))
    assert batch.labels.tolist() == (positions % 3).tolist()


def test_augmentation_draws_from_the_stream_of_the_step(data: LabelledSet) -> None:
    order = BatchOrder(len(data), 40, 5, ("retrain", 1))
    augmentation = Augmentation(0.25, RandomCrop((0.3, 0.9), horizontal_flip=True))
    generator = torch_stream(5, "retrain", 1, "augment", 9)
    shifted = random_shift(data.images.batch(order.positions(9)), 0.25, generator)
    expected = augmentation.crop.apply(shifted, generator)
    assert torch.equal(LabelledBatches(data, order, augmentation, CPU).at(9).images, expected)


def test_loss_is_smoothed_cross_entropy(data: LabelledSet) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    batch = LabelledBatches(data, BatchOrder(len(data), 5, 0, ("retrain", 1)), NO_AUGMENTATION, CPU).at(0)
    target = torch.full((5, 3), 0.2 / 3).scatter_add(1, batch.labels[:, None], torch.full((5, 1), 0.8))
    expected = -(target * network(batch.images).log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(next(Supervised(network, label_smoothing=0.2).losses(batch, 0)).total, expected)
