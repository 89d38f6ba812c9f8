"""Changes of the values of pixels, which are 0 to 1 here; each works on a batch with a strength for each image.

Legend: B images, C channels (1 grey, or 3: red, green, blue), H, W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in what an image looks like in grey (ITU-R BT.601)."""

_LEVELS = 255
"""Brightest value of the files that images come from; some operations count in its steps."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """From normalised images to values 0 to 1 and back.

    Attributes:
        mean_C11: of each channel.
        std_C11: of each channel.
    """

    mean_C11: Tensor
    std_C11: Tensor

    @classmethod
    def of(cls, mean: Sequence[float], std: Sequence[float], like: Tensor) -> Pixels:
        """For images of the device and type of ``like``."""
        return cls(*(torch.tensor(values).view(-1, 1, 1).to(like) for values in (mean, std)))

    def values(self, x_BCHW: Tensor) -> Tensor:
        """Values 0 to 1; what resampling pushed beyond is cut off."""
        return (x_BCHW * self.std_C11 + self.mean_C11).clamp(0, 1)

    def normalised(self, v_BCHW: Tensor) -> Tensor:
        """The inverse of :meth:`values`."""
        return (v_BCHW - self.mean_C11) / self.std_C11


def jitter_colours(v_BCHW: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Brightness, contrast and saturation, in this order, times factors uniform within ``strength`` of 1.

    Args:
        v_BCHW: values 0 to 1.
        strength: 0 to 1.
        generator: on the CPU.
    """
    factors_3B = 1 + strength * (2 * torch.rand(3, len(v_BCHW), generator=generator) - 1)
    for change, factor_B in zip((brightness, contrast, saturation), factors_3B, strict=True):
        v_BCHW = change(v_BCHW, factor_B.to(v_BCHW))
    return v_BCHW


def brightness(v_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Factor 0 gives black, 1 the image."""
    return _blend(torch.zeros_like(v_BCHW), v_BCHW, factor_B)


def contrast(v_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Factor 0 gives the image's mean grey everywhere, 1 the image."""
    return _blend(_grey(v_BCHW).mean(dim=(2, 3), keepdim=True), v_BCHW, factor_B)


def saturation(v_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Factor 0 gives the image in grey, 1 the image."""
    return _blend(_grey(v_BCHW), v_BCHW, factor_B)


def sharpness(v_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """Factor 0 gives the image smoothed over 3 x 3 pixels, whose middle counts five times, 1 the image."""
    neighbours = F.avg_pool2d(v_BCHW, 3, stride=1) * 9
    smooth_BCHW = v_BCHW.clone()  # border pixels have no full neighbourhood and stay
    smooth_BCHW[:, :, 1:-1, 1:-1] = (neighbours + 4 * v_BCHW[:, :, 1:-1, 1:-1]) / 13
    return _blend(smooth_BCHW, v_BCHW, factor_B)


def solarize(v_BCHW: Tensor, threshold_B: Tensor) -> Tensor:
    """Values from the threshold on are inverted."""
    return torch.where(v_BCHW < _per_image(threshold_B), v_BCHW, 1 - v_BCHW)


def posterize(v_BCHW: Tensor, bits_B: Tensor) -> Tensor:
    """Only the highest bits of the 8 of each value are kept."""
    step_B111 = _per_image(2 ** (8 - bits_B))
    return ((v_BCHW * _LEVELS).round() / step_B111).floor() * step_B111 / _LEVELS


def autocontrast(v_BCHW: Tensor) -> Tensor:
    """Each channel stretched to 0 to 1; a channel of one value stays."""
    lowest, highest = v_BCHW.amin(dim=(2, 3), keepdim=True), v_BCHW.amax(dim=(2, 3), keepdim=True)
    spread = highest - lowest
    return torch.where(spread > 0, (v_BCHW - lowest) / spread.clamp(min=1 / _LEVELS), v_BCHW)


def equalize(v_BCHW: Tensor) -> Tensor:
    """Each value replaced by the share of its channel's other values up to it; a channel of one value stays.

    The histogram has one bin for each value that occurs, so that images need not have whole grey levels.
    """
    flat = v_BCHW.flatten(2).contiguous()
    upto = torch.searchsorted(flat.sort(dim=2).values, flat, right=True)
    lowest = upto.amin(dim=2, keepdim=True)  # how many are darkest
    others = flat.shape[2] - lowest
    even = ((upto - lowest) / others.clamp(min=1)).to(v_BCHW.dtype)
    return torch.where(others > 0, even, flat).view_as(v_BCHW)


def _grey(v_BCHW: Tensor) -> Tensor:
    if v_BCHW.shape[1] == 1:
        return v_BCHW
    weights = torch.tensor(_LUMA).view(1, 3, 1, 1).to(v_BCHW)
    return (v_BCHW * weights).sum(dim=1, keepdim=True)


def _blend(from_BCHW: Tensor, to_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """From one image (factor 0) to the other (1) and beyond, cut off at black and white."""
    return (from_BCHW + _per_image(factor_B) * (to_BCHW - from_BCHW)).clamp(0, 1)


def _per_image(value_B: Tensor) -> Tensor:
    return value_B[:, None, None, None]
