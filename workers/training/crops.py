"""Random resized crops and mirroring of a batch of images (He et al. 2022, MAE, appendix A.1), as two small matrices.

Cutting a box out of an image and enlarging it again is linear and separable: rows and columns are each resampled by
one matrix per image, which also holds the mirroring.  Two batched products per step are fast on every device and
give the same bits each time.

Legend: B images, C channels, S side in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ASPECT = (3 / 4, 4 / 3)
"""Range of width / height of a box; its logarithm is uniform (Szegedy et al. 2015, section 6)."""

_ATTEMPTS = 10
"""Draws of a box until one fits into the image; then the whole image is taken. As torchvision does."""


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """For each image a box of random size, shape and place, enlarged to the whole image, mirrored at random.

    The filter is bicubic (Keys 1981, a = -1/2), as in Pillow; values may leave the range of the pixels by a little.

    Attributes:
        scale: least and largest share of the image's area; ``(1, 1)`` keeps the whole image.
        horizontal_flip: mirror half of the images.
    """

    scale: tuple[float, float]
    horizontal_flip: bool

    @property
    def changes_nothing(self) -> bool:
        """True when every image stays as it is."""
        return self.scale == (1.0, 1.0) and not self.horizontal_flip

    def apply(self, x_BCSS: Tensor, generator: torch.Generator) -> Tensor:
        """Changed copies of square images, same shape and device.

        Args:
            x_BCSS: images.
            generator: source of all draws, on the CPU.

        Raises:
            ValueError: when the images are not square.
        """
        if x_BCSS.ndim != 4 or x_BCSS.shape[2] != x_BCSS.shape[3]:
            raise ValueError(f"images have shape {tuple(x_BCSS.shape)}, expected (B, C, S, S)")
        batch, side = len(x_BCSS), x_BCSS.shape[-1]
        boxes_4B = self._boxes(batch, generator)
        if self.horizontal_flip:
            mirrored_B = torch.rand(batch, generator=generator) < 0.5
            left_B, width_B = boxes_4B[0], boxes_4B[2]
            boxes_4B[0] = torch.where(mirrored_B, left_B + width_B, left_B)
            boxes_4B[2] = torch.where(mirrored_B, -width_B, width_B)
        left_B, top_B, width_B, height_B = boxes_4B.to(x_BCSS.device)
        columns_BSS = _resampling(left_B, width_B, side).to(x_BCSS.dtype)
        rows_BSS = _resampling(top_B, height_B, side).to(x_BCSS.dtype)
        narrowed = torch.einsum("bchw,bsw->bchs", x_BCSS, columns_BSS)
        return torch.einsum("bchs,brh->bcrs", narrowed, rows_BSS).contiguous()

    def _boxes(self, batch: int, generator: torch.Generator) -> Tensor:
        """Left, top, width and height (4, B) of a box for each image, in shares of the side."""
        low, high = self.scale
        area_BA, aspect_BA = torch.rand(2, batch, _ATTEMPTS, generator=generator)
        area_BA = low + (high - low) * area_BA
        narrow, wide = map(math.log, ASPECT)
        aspect_BA = (narrow + (wide - narrow) * aspect_BA).exp()
        width_BA, height_BA = (area_BA * aspect_BA).sqrt(), (area_BA / aspect_BA).sqrt()
        fits_BA = (width_BA <= 1) & (height_BA <= 1)
        first_B1 = fits_BA.to(torch.uint8).argmax(dim=1, keepdim=True)
        any_fits_B = fits_BA.any(dim=1)
        size_2B = torch.stack([side.gather(1, first_B1)[:, 0] for side in (width_BA, height_BA)])
        size_2B = torch.where(any_fits_B, size_2B, 1.0)
        corner_2B = torch.rand(2, batch, generator=generator) * (1 - size_2B)
        return torch.cat((corner_2B, size_2B))


def _resampling(start_B: Tensor, extent_B: Tensor, side: int) -> Tensor:
    """Matrices (B, S, S) from pixels of an axis to those of a part of it; a negative extent runs backwards.

    Args:
        start_B: where the part begins, in shares of the axis.
        extent_B: its length, in shares of the axis, at most 1, so that pixels are enlarged and need no smoothing.
        side: pixels of the axis.
    """
    pixels_S = torch.arange(side, device=start_B.device, dtype=start_B.dtype)
    places_BS = start_B[:, None] * side + (pixels_S + 0.5) * extent_B[:, None] - 0.5
    distance_BSS = (places_BS[:, :, None] - pixels_S).abs().clamp_(max=2.0)
    near = (1.5 * distance_BSS - 2.5) * distance_BSS**2 + 1
    far = ((2.5 - 0.5 * distance_BSS) * distance_BSS - 4) * distance_BSS + 2
    weights_BSS = torch.where(distance_BSS < 1, near, far)
    # Beyond the border there are no pixels: the others share their weight.
    return weights_BSS / weights_BSS.sum(dim=2, keepdim=True)
