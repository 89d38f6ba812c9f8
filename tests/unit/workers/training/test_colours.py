"""Operations on pixels against Pillow's, which the published recipes use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from workers.training import colours


def grey_levels(images: int = 4, channels: int = 3, side: int = 12) -> Tensor:
    """Random uint8 images that leave the ends of the range free."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(20, 200, (images, channels, side, side), generator=generator, dtype=torch.uint8)


def by_pillow(levels: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    changed = [np.asarray(change(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in levels]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2) / 255


ENHANCEMENTS = {
    "brightness": (colours.brightness, ImageEnhance.Brightness),
    "contrast": (colours.contrast, ImageEnhance.Contrast),
    "saturation": (colours.saturation, ImageEnhance.Color),
    "sharpness": (colours.sharpness, ImageEnhance.Sharpness),
}


@pytest.mark.parametrize("factor", [0.1, 1.0, 1.9])
@pytest.mark.parametrize("name", ENHANCEMENTS)
def test_enhancements_are_pillows(name: str, factor: float) -> None:
    ours, theirs = ENHANCEMENTS[name]
    levels = grey_levels()
    expected = by_pillow(levels, lambda image: theirs(image).enhance(factor))
    # Pillow rounds to whole levels on the way, and a factor enlarges that.
    torch.testing.assert_close(ours(levels / 255, torch.full((4,), factor)), expected, atol=2.5 / 255, rtol=0)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_posterize_is_pillows(bits: int) -> None:
    levels = grey_levels()
    expected = by_pillow(levels, lambda image: ImageOps.posterize(image, bits))
    torch.testing.assert_close(colours.posterize(levels / 255, torch.full((4,), float(bits))), expected)


def test_solarize_is_pillows() -> None:
    levels = grey_levels()
    expected = by_pillow(levels, lambda image: ImageOps.solarize(image, 128))
    torch.testing.assert_close(colours.solarize(levels / 255, torch.full((4,), 128 / 255)), expected)


def test_autocontrast_is_pillows() -> None:
    levels = grey_levels()
    expected = by_pillow(levels, ImageOps.autocontrast)
    torch.testing.assert_close(colours.autocontrast(levels / 255), expected, atol=1 / 255, rtol=0)


def test_equalize_is_pillows() -> None:
    levels = grey_levels(images=1, side=200)  # enough pixels for Pillow's whole steps
    expected = by_pillow(levels, ImageOps.equalize)
    torch.testing.assert_close(colours.equalize(levels / 255), expected, atol=4 / 255, rtol=0)


def test_equalize_spreads_values_evenly() -> None:
    values = torch.tensor([0.1, 0.1, 0.2, 0.9]).view(1, 1, 2, 2)
    assert torch.equal(colours.equalize(values).flatten(), torch.tensor([0.0, 0.0, 0.5, 1.0]))


@pytest.mark.parametrize("change", [colours.autocontrast, colours.equalize])
def test_an_even_image_stays(change: Callable[[Tensor], Tensor]) -> None:
    even = torch.full((1, 1, 4, 4), 0.3)
    assert torch.equal(change(even), even)


def test_each_image_has_a_factor_of_its_own() -> None:
    levels = grey_levels() / 255
    factors = torch.tensor([0.2, 1.0, 1.5, 0.7])
    together = colours.contrast(levels, factors)
    for number in range(4):
        alone = colours.contrast(levels[number : number + 1], factors[number : number + 1])
        assert torch.equal(together[number : number + 1], alone)


def test_grey_images_have_no_saturation() -> None:
    values = grey_levels(channels=1) / 255
    assert torch.equal(colours.saturation(values, torch.full((4,), 1.9)), values)


def test_jitter_is_brightness_contrast_and_saturation_within_its_strength() -> None:
    values = grey_levels(images=300) / 255
    jittered = colours.jitter_colours(values, 0.4, torch.Generator().manual_seed(3))
    factors = 0.6 + 0.8 * torch.rand(3, 300, generator=torch.Generator().manual_seed(3))
    expected = colours.brightness(values, factors[0])
    expected = colours.saturation(colours.contrast(expected, factors[1]), factors[2])
    torch.testing.assert_close(jittered, expected)
    torch.testing.assert_close(colours.jitter_colours(values, 0.0, torch.Generator()), values)


def test_pixels_and_normalised_images_are_inverse() -> None:
    values = grey_levels() / 255
    pixels = colours.Pixels.of((0.5, 0.4, 0.3), (0.2, 0.2, 0.1), values)
    torch.testing.assert_close(pixels.values(pixels.normalised(values)), values)
