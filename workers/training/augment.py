"""Random changes of whole batches of images that need nothing but the images; each image has draws of its own.

Draws come from a passed generator on the CPU, so that they do not depend on the device. All functions return tensors of
the same shape and type, on the device of the input, and never wait for that device.

Legend: B images, C channels, H, W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.colours import Pixels, jitter_colours
from workers.training.crops import RandomCrop
from workers.training.randaugment import RandAugment

_ERASED_AREA = (0.02, 1 / 3)
"""Least and largest share of an image that is erased (Zhong et al. 2020, section 3; here as in DeiT)."""

_ERASED_ASPECT = 10 / 3
"""Erased boxes are at most this much wider than high, or higher than wide (the same section)."""

_WHOLE_IMAGE = RandomCrop((1.0, 1.0), horizontal_flip=False)
_NO_OPERATIONS = RandAugment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """What happens to each training image, in the order of the attributes; the defaults change nothing.

    Attributes:
        max_shift: see :func:`random_shift`.
        crop: box that becomes the image, and mirroring.
        randaugment: see :class:`RandAugment`.
        color_jitter: see :func:`jitter_colours`.
        erasing: probability of :func:`random_erasing`.
    """

    max_shift: float = 0.0
    crop: RandomCrop = _WHOLE_IMAGE
    randaugment: RandAugment = _NO_OPERATIONS
    color_jitter: float = 0.0
    erasing: float = 0.0

    def apply(self, x_BCHW: Tensor, mean: Sequence[float], std: Sequence[float], generator: torch.Generator) -> Tensor:
        """Changed images.

        Args:
            x_BCHW: square images, normalised.
            mean: of each channel, that was subtracted.
            std: of each channel, that was divided by.
            generator: on the CPU.
        """
        if self.max_shift:
            x_BCHW = random_shift(x_BCHW, self.max_shift, generator)
        if not self.crop.changes_nothing:
            x_BCHW = self.crop.apply(x_BCHW, generator)
        if self.randaugment.ops or self.color_jitter:
            pixels = Pixels.of(mean, std, x_BCHW)
            v_BCHW = pixels.values(x_BCHW)
            if self.randaugment.ops:
                v_BCHW = self.randaugment.apply(v_BCHW, pixels.mean_C11, generator)
            if self.color_jitter:
                v_BCHW = jitter_colours(v_BCHW, self.color_jitter, generator)
            x_BCHW = pixels.normalised(v_BCHW)
        return random_erasing(x_BCHW, self.erasing, generator) if self.erasing else x_BCHW


def random_shift(x_BCHW: Tensor, max_shift: float, generator: torch.Generator) -> Tensor:
    """Each image moved along both axes by whole pixels; the border pixels are repeated.

    Args:
        x_BCHW: images.
        max_shift: largest translation along each axis, as a share of the side.
        generator: on the CPU.
    """
    batch, _, height, width = x_BCHW.shape
    rows_BH = _shifted(batch, height, max_shift, generator).to(x_BCHW.device)
    columns_BW = _shifted(batch, width, max_shift, generator).to(x_BCHW.device)
    images = torch.arange(batch, device=x_BCHW.device)[:, None, None]
    # Indexing around a slice puts the channel axis last.
    return x_BCHW[images, :, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)


def random_erasing(x_BCHW: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """A random box of some images replaced by noise (Zhong et al. 2020, algorithm 1).

    The area of the box is uniform in 2 % to 1/3 of the image, the logarithm of its aspect uniform in 3/10 to 10/3 as
    far as such a box fits, its place uniform; a pixel is erased when its centre is inside. The noise is standard normal
    for each value, which suits normalised images. The images of a batch share one field of noise, of which their boxes
    show different parts: a field for each would be most of the draws of a training.

    Args:
        x_BCHW: normalised images.
        probability: that an image is changed.
        generator: on the CPU.
    """
    batch, channels, height, width = x_BCHW.shape
    chosen_B, area_B, aspect_B, top_B, left_B = torch.rand(5, batch, generator=generator)
    least, largest = _ERASED_AREA
    area_B = least + (largest - least) * area_B
    # Sides sqrt(area * aspect) and sqrt(area / aspect) are at most 1.
    widest_B = area_B.log().neg().clamp(max=math.log(_ERASED_ASPECT))
    aspect_B = ((2 * aspect_B - 1) * widest_B).exp()
    columns_BW = _inside(left_B, (area_B * aspect_B).sqrt(), width)
    rows_BH = _inside(top_B, (area_B / aspect_B).sqrt(), height)
    erased_BHW = rows_BH[:, :, None] & columns_BW[:, None, :] & (chosen_B < probability)[:, None, None]
    noise_CHW = torch.randn(channels, height, width, generator=generator).to(x_BCHW)
    return torch.where(erased_BHW[:, None].to(x_BCHW.device), noise_CHW, x_BCHW)


def _inside(place_B: Tensor, size_B: Tensor, side: int) -> Tensor:
    """Which pixels (B, side) have their centre inside a part of an axis that begins after ``place`` of what is left."""
    centre = (torch.arange(side) + 0.5) / side
    start_B1 = (place_B * (1 - size_B))[:, None]
    return (centre >= start_B1) & (centre < start_B1 + size_B[:, None])


def _shifted(batch: int, side: int, max_shift: float, generator: torch.Generator) -> Tensor:
    """Source index (B, side) of each pixel along one axis."""
    reach = int(max_shift * side)
    shift = torch.randint(-reach, reach + 1, (batch, 1), generator=generator)
    return (torch.arange(side) + shift).clamp(0, side - 1)
