from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from workers.training.mixing import Mixing, cutmix

BATCH, CLASSES, SIDE = 8, 5, 16
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 2, 4])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def plain() -> Tensor:
    """Images of one value each, their number in the batch."""
    return torch.arange(float(BATCH)).view(-1, 1, 1, 1).expand(-1, 3, SIDE, SIDE).contiguous()


def own_and_partner(own: float) -> Tensor:
    """What the shares should be when each image keeps ``own`` and takes the rest from the image before it."""
    expected = torch.zeros(BATCH, CLASSES)
    for number in range(BATCH):
        expected[number, LABELS[number]] += own
        expected[number, LABELS[number - 1]] += 1 - own
    return expected


def test_mixup_is_a_weighted_mean_of_images_and_classes() -> None:
    images, shares = Mixing(mixup=0.8).apply(plain(), LABELS, CLASSES, rng())
    own = float(images[1, 0, 0, 0])  # image 1 of value 1 with image 0 of value 0
    assert 0 < own < 1
    partner = torch.arange(float(BATCH)).roll(1)
    expected = own * torch.arange(float(BATCH)) + (1 - own) * partner
    torch.testing.assert_close(images, expected.view(-1, 1, 1, 1).expand_as(images))
    torch.testing.assert_close(shares, own_and_partner(own))


@pytest.mark.parametrize("seed", range(5))
def test_cutmix_shares_are_the_areas_of_the_image(seed: int) -> None:
    images, shares = Mixing(cutmix=1.0).apply(plain(), LABELS, CLASSES, rng(seed))
    foreign = images[1] == 0
    assert set(images[1].unique().tolist()) <= {0.0, 1.0}
    rows, columns = foreign[0].any(dim=1), foreign[0].any(dim=0)
    assert torch.equal(foreign, (rows[:, None] & columns[None, :]).expand_as(foreign))  # a box, in all channels
    own = 1 - foreign[0].float().mean().item()
    torch.testing.assert_close(shares, own_and_partner(own))


def test_a_box_inside_the_image_has_the_drawn_area() -> None:
    x = torch.zeros(1, 1, 100, 100)
    areas = [1 - cutmix(x, x + 1, 0.75, rng(seed))[1] for seed in range(200)]
    assert max(areas) == pytest.approx(0.25)  # a half by a half
    assert min(areas) < 0.25  # cut off at the border


@pytest.mark.parametrize("mixing", [Mixing(mixup=0.8), Mixing(cutmix=1.0), Mixing(mixup=0.8, cutmix=1.0)])
def test_shares_add_up_to_one(mixing: Mixing) -> None:
    for seed in range(20):
        _, shares = mixing.apply(plain(), LABELS, CLASSES, rng(seed))
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(BATCH))
        assert shares.min() >= 0


def kinds(mixing: Mixing, count: int = 400) -> dict[str, float]:
    """How often batches are cut, blended and left alone."""
    counts = {"cut": 0, "blended": 0, "left": 0}
    for seed in range(count):
        values = mixing.apply(plain(), LABELS, CLASSES, rng(seed))[0][1].unique().tolist()
        counts["left" if values == [1.0] else "cut" if 0.0 in values else "blended"] += 1
    return {kind: number / count for kind, number in counts.items()}


def test_probability_and_share_decide_between_mixup_and_cutmix() -> None:
    found = kinds(Mixing(mixup=1.0, cutmix=1.0, probability=0.8, cutmix_share=0.25))
    # Boxes of less than a pixel leave a few batches as they are.
    assert found["cut"] == pytest.approx(0.2, abs=0.07)
    assert found["blended"] == pytest.approx(0.6, abs=0.08)
    assert found["left"] == pytest.approx(0.2, abs=0.07)


def test_without_mixing_classes_stay_certain() -> None:
    images, shares = Mixing(mixup=1.0, probability=0.0).apply(plain(), LABELS, CLASSES, rng())
    assert torch.equal(images, plain())
    assert torch.equal(shares, torch.eye(CLASSES)[LABELS])


def test_draws_alone_decide() -> None:
    mixing = Mixing(mixup=0.8, cutmix=1.0)
    first, again, other = (mixing.apply(plain(), LABELS, CLASSES, rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_mixing_knows_when_it_changes_nothing() -> None:
    assert Mixing().changes_nothing
    assert Mixing(mixup=1.0, cutmix=1.0, probability=0.0).changes_nothing
    assert not Mixing(mixup=0.1).changes_nothing
    assert not Mixing(cutmix=0.1).changes_nothing
