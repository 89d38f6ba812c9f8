from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.training.augment import Augmentation, random_erasing, random_shift
from workers.training.colours import Pixels, jitter_colours
from workers.training.crops import RandomCrop
from workers.training.randaugment import RandAugment

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)

EVERYTHING = Augmentation(
    max_shift=0.25,
    crop=RandomCrop((0.5, 1.0), horizontal_flip=True),
    randaugment=RandAugment(ops=2),
    color_jitter=0.4,
    erasing=0.5,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalised(images: int = 64, side: int = 8) -> Tensor:
    """Random images as a dataset gives them."""
    values = torch.randint(256, (images, 3, side, side), generator=seeded(5)) / 255
    return Pixels.of(MEAN, STD, values).normalised(values)


CHANGES = {
    "shift": Augmentation(max_shift=0.25),
    "crop": Augmentation(crop=RandomCrop((0.5, 1.0), horizontal_flip=True)),
    "randaugment": Augmentation(randaugment=RandAugment(ops=2)),
    "color_jitter": Augmentation(color_jitter=0.4),
    "erasing": Augmentation(erasing=0.5),
    "everything": EVERYTHING,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_draws_alone_decide_and_the_input_is_left_alone(change: Augmentation) -> None:
    x = normalised()
    before = x.clone()
    changed = change.apply(x, MEAN, STD, seeded(1))
    assert (changed.shape, changed.dtype) == (x.shape, x.dtype)
    assert torch.equal(change.apply(x, MEAN, STD, seeded(1)), changed)
    assert not torch.equal(change.apply(x, MEAN, STD, seeded(2)), changed)
    assert torch.equal(x, before)


def test_without_erasing_values_stay_those_of_pixels() -> None:
    x = normalised()
    change = Augmentation(max_shift=0.25, randaugment=RandAugment(ops=3), color_jitter=0.4)
    values = change.apply(x, MEAN, STD, seeded()) * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    assert values.min() > -1e-5
    assert values.max() < 1 + 1e-5


def test_no_augmentation_changes_nothing() -> None:
    x = normalised()
    assert torch.equal(Augmentation().apply(x, MEAN, STD, seeded()), x)


def test_colours_change_as_values_of_pixels() -> None:
    x = normalised()
    expected = jitter_colours(x * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1), 0.4, seeded(1))
    changed = Augmentation(color_jitter=0.4).apply(x, MEAN, STD, seeded(1))
    torch.testing.assert_close(changed * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1), expected)


def test_shift_moves_and_repeats_the_border() -> None:
    x = torch.arange(64.0).view(1, 1, 8, 8).repeat(200, 1, 1, 1)
    shifted = random_shift(x, 0.25, seeded())
    allowed = [
        F.pad(x[:1], (2, 2, 2, 2), mode="replicate")[:, :, top : top + 8, left : left + 8]
        for top in range(5)
        for left in range(5)
    ]
    found = {next(i for i, a in enumerate(allowed) if torch.equal(a[0], image)) for image in shifted}
    assert found == set(range(25))


def test_erasing_replaces_one_box_of_some_images() -> None:
    side = 40
    erased = random_erasing(torch.full((2000, 2, side, side), 9.0), 0.25, seeded())
    gone = erased != 9.0
    assert torch.equal(gone[:, 0], gone[:, 1])
    rows, columns = gone[:, 0].any(dim=2), gone[:, 0].any(dim=1)
    assert torch.equal(gone[:, 0], rows[:, :, None] & columns[:, None, :])
    changed = rows.any(dim=1)
    assert changed.float().mean() == pytest.approx(0.25, abs=0.04)
    height, width = rows.sum(dim=1)[changed], columns.sum(dim=1)[changed]
    area = height * width / side**2
    # Sides are whole pixels: two of at most 2 * sqrt(1/3) of the image may each be one pixel off.
    assert area.mean() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    assert area.min() > 0.02 - 0.02
    assert area.max() < 1 / 3 + 0.04
    assert (height / width).log().abs().max() < math.log(10 / 3) + 0.5
    assert (height / width).log().mean() == pytest.approx(0, abs=0.15)
    # Everywhere alike: the middle of a box is on average that of the image.
    middle = (rows[changed] * torch.arange(side)).sum(dim=1) / height
    assert middle.mean() == pytest.approx((side - 1) / 2, abs=1.5)


def test_erased_pixels_are_standard_normal_noise() -> None:
    erased = random_erasing(torch.full((500, 3, 32, 32), 9.0), 1.0, seeded())
    noise = erased[erased != 9.0]
    assert noise.mean() == pytest.approx(0, abs=0.1)
    assert noise.std() == pytest.approx(1, abs=0.1)
