from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.architecture import Pool
from models.classifier import FrozenClassifier
from models.extract import build_timm
from tests.unit.workers.training.toys import CPU, TEACHER, images
from workers.data.dataset import LabelledSet
from workers.training.augment import Augmentation
from workers.training.crops import RandomCrop
from workers.training.mixing import Mixing
from workers.training.randaugment import RandAugment
from workers.training.schedule import BatchOrder
from workers.training.streams import numpy_stream, torch_stream
from workers.training.supervised import LabelledBatches, Supervised, count_correct


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


def batches(data: LabelledSet, augmentation: Augmentation, mixing: Mixing, seed: int = 5) -> LabelledBatches:
    return LabelledBatches(data, BatchOrder(len(data), 20, seed, ("retrain", 1)), augmentation, mixing, CPU)


def test_batches_keep_images_and_labels_together(data: LabelledSet) -> None:
    batch = batches(data, Augmentation(), Mixing()).at(3)
    positions = BatchOrder(len(data), 20, 5, ("retrain", 1)).positions(3)
    assert torch.equal(batch.images, data.images.batch(positions))
    assert batch.targets.tolist() == (positions % 3).tolist()


EVERYTHING = Augmentation(
    max_shift=0.25,
    crop=RandomCrop((0.3, 0.9), horizontal_flip=True),
    randaugment=RandAugment(ops=2),
    color_jitter=0.3,
    erasing=0.25,
)


def test_batches_are_augmented_and_then_mixed_from_the_streams_of_the_step(data: LabelledSet) -> None:
    positions = BatchOrder(len(data), 20, 5, ("retrain", 1)).positions(9)
    generator = torch_stream(5, "retrain", 1, "augment", 9)
    augmented = EVERYTHING.apply(data.images.batch(positions), (0.5,), (0.25,), generator)
    mixing, labels = Mixing(mixup=0.8, cutmix=1.0), torch.from_numpy(data.labels[positions])
    images, shares = mixing.apply(augmented, labels, 3, numpy_stream(5, "retrain", 1, "mix", 9))
    batch = batches(data, EVERYTHING, mixing).at(9)
    assert torch.equal(batch.images, images)
    assert torch.equal(batch.targets, shares)


def test_equal_seeds_and_steps_give_equal_batches_and_others_do_not(data: LabelledSet) -> None:
    mixing = Mixing(mixup=0.8, cutmix=1.0)
    first = batches(data, EVERYTHING, mixing).at(2).images
    assert torch.equal(batches(data, EVERYTHING, mixing).at(2).images, first)
    assert not torch.equal(batches(data, EVERYTHING, mixing).at(4).images, first)
    assert not torch.equal(batches(data, EVERYTHING, mixing, seed=6).at(2).images, first)


@pytest.mark.parametrize("mixing", [Mixing(), Mixing(mixup=0.8)], ids=["certain", "mixed"])
def test_loss_is_smoothed_cross_entropy(data: LabelledSet, mixing: Mixing) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    batch = batches(data, Augmentation(), mixing).at(0)
    shares = batch.targets if batch.targets.ndim == 2 else torch.eye(3)[batch.targets]
    expected = -((0.8 * shares + 0.2 / 3) * network(batch.images).log_softmax(dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(next(Supervised(network, label_smoothing=0.2).losses(batch, 0)).total, expected)


def linear(seed: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.normal_(network[1].weight, generator=torch.Generator().manual_seed(seed))
    return network


def cross_entropy(logits: Tensor, shares: Tensor) -> Tensor:
    return -(shares * logits.log_softmax(dim=1)).sum(dim=1).mean()


def test_decisions_of_a_teacher_are_half_of_what_is_learnt(data: LabelledSet) -> None:
    network, teacher = linear(0), linear(1)
    batch = batches(data, Augmentation(), Mixing()).at(0)
    decided = torch.eye(3)[teacher(batch.images).argmax(dim=1)]
    logits, labels = network(batch.images), torch.eye(3)[batch.targets]
    expected = 0.5 * cross_entropy(logits, 0.9 * labels + 0.1 / 3) + 0.5 * cross_entropy(logits, decided)
    objective = Supervised(network, label_smoothing=0.1, teacher=FrozenClassifier(teacher))
    torch.testing.assert_close(next(objective.losses(batch, 0)).total, expected)


@pytest.mark.parametrize("taught", [False, True], ids=["labels alone", "teacher"])
def test_distillation_token_learns_what_the_teacher_decides_or_else_labels(data: LabelledSet, taught: bool) -> None:
    arch = replace(TEACHER, distilled=True, pool=Pool.TOKEN, num_classes=3)
    network, teacher = build_timm(arch, torch.Generator().manual_seed(0)), FrozenClassifier(linear(1))
    batch = batches(data, Augmentation(), Mixing()).at(0)
    tokens = network.forward_features(batch.images)
    labels = torch.eye(3)[batch.targets]
    second = torch.eye(3)[teacher.logits(batch.images).argmax(dim=1)] if taught else labels
    expected = 0.5 * cross_entropy(network.head(tokens[:, 0]), labels)
    expected = expected + 0.5 * cross_entropy(network.head_dist(tokens[:, 1]), second)
    objective = Supervised(network, label_smoothing=0.0, teacher=teacher if taught else None)
    torch.testing.assert_close(next(objective.losses(batch, 0)).total, expected)
