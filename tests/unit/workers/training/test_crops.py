from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.unit.workers.training.toys import CPU, UNCHANGED, images
from workers.training.crops import RandomCrop
from workers.training.masked import ImageBatches
from workers.training.schedule import BatchOrder

SIDE = 12


def batch(count: int = 5, channels: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, channels, SIDE, SIDE, generator=seeded(seed))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def places(scale: tuple[float, float], flip: bool, count: int = 3000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, top, width and height of what each crop shows, in shares of the side, read from ramps.

    Bicubic interpolation keeps a ramp exactly, away from the border; two columns in the middle tell its slope.
    """
    ramp = torch.arange(SIDE).float() + 0.5
    columns, rows = ramp.expand(SIDE, SIDE), ramp[:, None].expand(SIDE, SIDE)
    seen = RandomCrop(scale, flip).apply(torch.stack((columns, rows)).expand(count, -1, -1, -1), seeded(3))
    middle = SIDE // 2
    across, down = seen[:, 0, middle, middle - 1 : middle + 1], seen[:, 1, middle - 1 : middle + 1, middle]
    width, height = across[:, 1] - across[:, 0], down[:, 1] - down[:, 0]
    left, top = (pair.mean(1) / SIDE - size.abs() / 2 for pair, size in ((across, width), (down, height)))
    return left, top, width, height


def test_crop_is_pillows_bicubic_enlargement_of_a_box() -> None:
    x = batch()
    cropped = RandomCrop((0.3, 0.8), horizontal_flip=False).apply(x, seeded(1))
    left, top, width, height = RandomCrop((0.3, 0.8), horizontal_flip=False)._boxes(len(x), seeded(1)).double()
    assert ((width * height > 0.3) & (width * height < 0.8)).all()
    for i in range(len(x)):
        box = tuple((SIDE * edge[i]).item() for edge in (left, top, left + width, top + height))
        for channel in range(2):
            source = Image.fromarray(x[i, channel].numpy(), "F")
            expected = np.asarray(source.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box))
            np.testing.assert_allclose(cropped[i, channel], expected, atol=2e-5)


def test_whole_images_stay_as_they_are_but_for_mirroring() -> None:
    x = batch(64)
    torch.testing.assert_close(RandomCrop((1.0, 1.0), horizontal_flip=False).apply(x, seeded(0)), x)
    mirrored = RandomCrop((1.0, 1.0), horizontal_flip=True).apply(x, seeded(0))
    same = torch.isclose(mirrored, x, atol=1e-5).flatten(1).all(1)
    turned = torch.isclose(mirrored, x.flip(3), atol=1e-5).flatten(1).all(1)
    assert (same ^ turned).all()
    assert 16 < int(turned.sum()) < 48


def test_boxes_have_the_sizes_shapes_and_places_of_a_random_resized_crop() -> None:
    left, top, width, height = places((0.2, 0.6), flip=False)
    area, aspect = width * height, width / height
    assert 0.2 < area.min() < 0.22
    assert 0.58 < area.max() < 0.6
    assert area.mean() == pytest.approx(0.4, abs=0.01)  # a uniform share, 3000 draws
    assert 0.745 < aspect.min() < 0.76
    assert 1.31 < aspect.max() < 1.34
    assert aspect.log().mean() == pytest.approx(0.0, abs=0.02)
    for corner, size in ((left, width), (top, height)):
        assert corner.min() > -1e-3
        assert (corner + size).max() < 1 + 1e-3
        assert (corner / (1 - size)).mean() == pytest.approx(0.5, abs=0.03)


def test_half_of_the_crops_run_backwards() -> None:
    _, _, width, height = places((0.2, 0.6), flip=True)
    assert (width < 0).float().mean() == pytest.approx(0.5, abs=0.04)
    assert (height > 0).all()


def test_images_that_are_not_square_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 1, 4, 6\), expected \(B, C, S, S\)"):
        UNCHANGED.apply(torch.zeros(1, 1, 4, 6), seeded(0))


def test_crops_are_a_function_of_seed_stage_and_step() -> None:
    data, crop = images(), RandomCrop((0.2, 1.0), horizontal_flip=True)

    def at(step: int, seed: int = 0, stage: str = "supernet", crop: RandomCrop = crop) -> Tensor:
        return ImageBatches(data, BatchOrder(len(data), len(data), seed, (stage,)), crop, CPU).at(step)

    def averages(cropped: Tensor) -> Tensor:
        return cropped.mean((1, 2, 3)).sort().values

    assert torch.equal(at(3), at(3))
    # Each batch holds all images: whole, they would be the same ones in another order.
    torch.testing.assert_close(averages(at(3, crop=UNCHANGED)), averages(at(4, crop=UNCHANGED)))
    for other in (at(3, crop=UNCHANGED), at(4), at(3, stage="teacher"), at(3, seed=1)):
        assert (averages(at(3)) - averages(other)).abs().max() > 0.01
