from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.training.augment import random_shift

Change = Callable[[Tensor, torch.Generator], Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


CHANGES: dict[str, Change] = {
    "shift": lambda x, generator: random_shift(x, 0.25, generator),
}
any_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())


@any_change
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_type_stay(change: Change, dtype: torch.dtype) -> None:
    x = torch.rand(5, 3, 8, 6, generator=seeded(), dtype=dtype)
    changed = change(x, seeded())
    assert (changed.shape, changed.dtype) == (x.shape, x.dtype)


@any_change
def test_equal_seeds_give_equal_images(change: Change) -> None:
    x = torch.rand(16, 3, 8, 8, generator=seeded())
    assert torch.equal(change(x, seeded(1)), change(x, seeded(1)))
    assert not torch.equal(change(x, seeded(1)), change(x, seeded(2)))


@any_change
def test_input_is_left_alone(change: Change) -> None:
    x = torch.rand(16, 3, 8, 8, generator=seeded())
    before = x.clone()
    change(x, seeded())
    assert torch.equal(x, before)


@any_change
def test_values_stay_within_those_of_the_image(change: Change) -> None:
    x = (torch.rand(64, 3, 8, 8, generator=seeded()) > 0.5).float()
    changed = change(x, seeded())
    assert (changed.amin(), changed.amax()) == (0, 1)


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
