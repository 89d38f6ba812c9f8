from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from workers.training import colours
from workers.training.randaugment import OPERATIONS, Drawn, RandAugment

FILL = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def values(images: int = 6, side: int = 16) -> Tensor:
    """Smooth random images, which interpolations agree on."""
    coarse = torch.rand(images, 3, 4, 4, generator=seeded())
    return F.interpolate(coarse, size=side, mode="bicubic").clamp(0, 1)


def operated(name: str, x: Tensor, strength: float, sign: float = 1.0) -> Tensor:
    full = torch.full((len(x),), 1.0)
    return OPERATIONS[name](Drawn(x, FILL, strength * full, sign * full))


def test_the_papers_fourteen_operations() -> None:
    assert set(OPERATIONS) == {
        *("identity", "autocontrast", "equalize", "rotate", "solarize", "color", "posterize"),
        *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
    }


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("name", "affine"),
    [
        ("rotate", {"angle": -27.0}),
        ("shear_x", {"shear": [math.degrees(math.atan(0.27)), 0.0]}),
        ("shear_y", {"shear": [0.0, math.degrees(math.atan(0.27))]}),
        ("translate_x", {"translate": [-0.405 * 16, 0.0]}),
        ("translate_y", {"translate": [0.0, -0.405 * 16]}),
    ],
)
def test_geometry_is_torchvisions(name: str, affine: dict[str, float | list[float]], sign: int) -> None:
    x = values()
    signed = {k: [sign * v for v in value] if isinstance(value, list) else sign * value for k, value in affine.items()}
    arguments = {"angle": 0.0, "translate": [0.0, 0.0], "shear": [0.0, 0.0]} | signed
    if "translate" in affine:  # whole pixels in torchvision
        expected = _moved(x, *arguments["translate"])
    else:
        expected = tv.affine(x - FILL, scale=1.0, interpolation=tv.InterpolationMode.BILINEAR, **arguments) + FILL
    torch.testing.assert_close(operated(name, x, 0.9, sign), expected, atol=1e-4, rtol=0)


def _moved(x: Tensor, right: float, down: float) -> Tensor:
    """Translation by parts of a pixel, as a weighted mean of two translations by whole pixels."""
    for axis, shift in ((3, right), (2, down)):
        whole, part = math.floor(shift), shift - math.floor(shift)
        x = (1 - part) * _moved_whole(x, whole, axis) + part * _moved_whole(x, whole + 1, axis)
    return x


def _moved_whole(x: Tensor, shift: int, axis: int) -> Tensor:
    moved = FILL.expand_as(x).clone()
    side = x.shape[axis]
    kept = side - abs(shift)
    moved.narrow(axis, max(0, shift), kept).copy_(x.narrow(axis, max(0, -shift), kept))
    return moved


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_geometry_without_strength_changes_nothing(name: str) -> None:
    torch.testing.assert_close(operated(name, values(), 0.0), values(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("identity", lambda x: x),
        ("autocontrast", colours.autocontrast),
        ("equalize", colours.equalize),
        ("solarize", lambda x: torch.where(x < 0.25, x, 1 - x)),
        ("posterize", lambda x: (x * 255).round().div(128).floor() * 128 / 255),
        ("color", lambda x: colours.saturation(x, torch.full((6,), 1.675))),
        ("contrast", lambda x: colours.contrast(x, torch.full((6,), 1.675))),
        ("brightness", lambda x: (1.675 * x).clamp(0, 1)),
        ("sharpness", lambda x: colours.sharpness(x, torch.full((6,), 1.675))),
    ],
)
def test_colours_at_three_quarters(name: str, expected: object) -> None:
    assert callable(expected)
    torch.testing.assert_close(operated(name, values(), 0.75), expected(values()))


def test_full_posterization_leaves_one_bit() -> None:
    assert set((operated("posterize", values(), 1.0) * 255).round().unique().tolist()) == {0, 128}


def test_every_operation_is_drawn_as_often_for_images_of_their_own() -> None:
    """On an image of which no two operations give the same, at a fixed magnitude."""
    x = values(1)
    outcomes = torch.cat([operated(name, x, 0.9, sign) for name in OPERATIONS for sign in (-1.0, 1.0)])
    drawn = RandAugment(ops=1, magnitude=9.0, magnitude_std=0.0).apply(x.expand(2800, -1, -1, -1), FILL, seeded())
    distance = torch.cdist(drawn.flatten(1), outcomes.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    assert distance.amin(dim=1).max() < 1e-3
    counts = torch.bincount(distance.argmin(dim=1) // 2, minlength=len(OPERATIONS))
    assert counts.min() > 140
    assert counts.max() < 260


def test_operations_follow_each_other_on_every_image() -> None:
    x = values(500)
    generator = seeded(4)
    twice = RandAugment(ops=1).apply(RandAugment(ops=1).apply(x, FILL, generator), FILL, generator)
    assert torch.equal(RandAugment(ops=2).apply(x, FILL, seeded(4)), twice)


def test_magnitude_is_spread_and_cut_off() -> None:
    x = torch.full((3000, 3, 4, 4), 0.5)
    bright = RandAugment(ops=1, magnitude=9.5, magnitude_std=1.0).apply(x, FILL, seeded())[:, 0, 2, 2]
    dimmed = bright[(bright > 0.04) & (bright < 0.3)]  # brightness with a negative sign, 0.5 * (1 - 0.09 m)
    assert dimmed.min() == pytest.approx(0.05)
    assert len(dimmed.unique()) > 10


def test_zero_operations_change_nothing() -> None:
    assert torch.equal(RandAugment(ops=0).apply(values(), FILL, seeded()), values())
