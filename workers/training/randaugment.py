"""RandAugment on batches (Cubuk et al. 2020): a few random operations on each image, all of one common magnitude.

The fourteen operations are the paper's. Their strengths grow with the magnitude as in the recipe of DeiT (timm's
increasing variant, "m9"): at 10, rotation by 30 degrees, shears of 0.3, translation by 45 % of the side, saturation,
contrast, brightness and sharpness times 0.1 or 1.9, all values inverted, one bit left of each value. What comes into
view from outside has the dataset's mean.

Legend: B images, C channels, H, W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.training import colours

MAX_MAGNITUDE = 10.0

_ROTATION = math.radians(30)
_SHEAR = 0.3
_TRANSLATION = 0.45
_ENHANCEMENT = 0.9
_BITS = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """Images that take one operation, and how strongly each.

    Attributes:
        v_BCHW: values 0 to 1.
        fill_C11: value of each channel outside of the images.
        strength_B: magnitude as a share of the highest, 0 to 1.
        sign_B: 1 or -1, for operations that have two directions.
    """

    v_BCHW: Tensor
    fill_C11: Tensor
    strength_B: Tensor
    sign_B: Tensor


Operation = Callable[[Drawn], Tensor]


@dataclass(frozen=True, slots=True)
class RandAugment:
    """The operations and how strong they are.

    Attributes:
        ops: how many operations follow each other on each image; 0 changes nothing.
        magnitude: of all operations, 0 to 10.
        magnitude_std: each operation on each image draws its magnitude from a normal distribution with this spread,
            cut off at 0 and 10.
    """

    ops: int = 0
    magnitude: float = 9.0
    magnitude_std: float = 0.5

    def apply(self, v_BCHW: Tensor, fill_C11: Tensor, generator: torch.Generator) -> Tensor:
        """Changed images.

        Args:
            v_BCHW: values 0 to 1 of square images.
            fill_C11: value of each channel outside of an image.
            generator: on the CPU.
        """
        for _ in range(self.ops):
            v_BCHW = self._one(v_BCHW, fill_C11, generator)
        return v_BCHW

    def _one(self, v_BCHW: Tensor, fill_C11: Tensor, generator: torch.Generator) -> Tensor:
        """An operation on each image."""
        batch = len(v_BCHW)
        chosen_B = torch.randint(len(OPERATIONS), (batch,), generator=generator)
        sign_B = 2.0 * torch.randint(2, (batch,), generator=generator) - 1
        magnitude_B = self.magnitude + self.magnitude_std * torch.randn(batch, generator=generator)
        strength_B = (magnitude_B / MAX_MAGNITUDE).clamp(0, 1)
        changed_BCHW = v_BCHW.clone()
        for number, operation in enumerate(OPERATIONS.values()):
            # Which images these are is known on the CPU, so that the device is not waited for.
            images = (chosen_B == number).nonzero()[:, 0]
            if len(images):
                here = images.to(v_BCHW.device)
                strengths = (strength_B[images].to(v_BCHW), sign_B[images].to(v_BCHW))
                changed_BCHW[here] = operation(Drawn(v_BCHW[here], fill_C11, *strengths))
        return changed_BCHW


def _enhanced(change: Callable[[Tensor, Tensor], Tensor]) -> Operation:
    return lambda drawn: change(drawn.v_BCHW, 1 + drawn.sign_B * _ENHANCEMENT * drawn.strength_B)


def _posterized(drawn: Drawn) -> Tensor:
    """No bit at all would leave a black image, so one is kept."""
    return colours.posterize(drawn.v_BCHW, (_BITS - (_BITS * drawn.strength_B).floor()).clamp(min=1))


def _rotated(drawn: Drawn) -> Tensor:
    angle_B = drawn.sign_B * _ROTATION * drawn.strength_B
    return _resampled(drawn, xx=angle_B.cos(), xy=-angle_B.sin(), yx=angle_B.sin(), yy=angle_B.cos())


def _resampled(drawn: Drawn, **affine: Tensor) -> Tensor:
    """Each pixel takes the value at ``(xx * x + xy * y + x0, yx * x + yy * y + y0)``, in sides from the middle.

    Values are interpolated linearly. Entries that are not given are those of the identity.
    """
    height, width = drawn.v_BCHW.shape[2:]
    identity = {"xx": 1.0, "xy": 0.0, "x0": 0.0, "yx": 0.0, "yy": 1.0, "y0": 0.0}
    none_B = torch.zeros_like(drawn.strength_B)
    xx, xy, x0, yx, yy, y0 = (affine.get(name, none_B + value)[:, None, None] for name, value in identity.items())
    x_W = (torch.arange(width, device=none_B.device, dtype=none_B.dtype) + 0.5) / width - 0.5
    y_H1 = ((torch.arange(height, device=none_B.device, dtype=none_B.dtype) + 0.5) / height - 0.5)[:, None]
    # grid_sample counts from -1 to 1, and pads with zeros: the fill is taken off and put back.
    grid_BHW2 = 2 * torch.stack([xx * x_W + xy * y_H1 + x0, yx * x_W + yy * y_H1 + y0], dim=-1)
    moved = F.grid_sample(drawn.v_BCHW - drawn.fill_C11, grid_BHW2, padding_mode="zeros", align_corners=False)
    return (moved + drawn.fill_C11).clamp(0, 1)  # rounding


def _moved(share: float, entry: str) -> Operation:
    """An affine change in one entry: a shear (``xy``, ``yx``) or a translation (``x0``, ``y0``)."""
    return lambda drawn: _resampled(drawn, **{entry: drawn.sign_B * share * drawn.strength_B})


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "identity": lambda drawn: drawn.v_BCHW,
        "autocontrast": lambda drawn: colours.autocontrast(drawn.v_BCHW),
        "equalize": lambda drawn: colours.equalize(drawn.v_BCHW),
        "rotate": _rotated,
        "solarize": lambda drawn: colours.solarize(drawn.v_BCHW, 1 - drawn.strength_B),
        "color": _enhanced(colours.saturation),
        "posterize": _posterized,
        "contrast": _enhanced(colours.contrast),
        "brightness": _enhanced(colours.brightness),
        "sharpness": _enhanced(colours.sharpness),
        "shear_x": _moved(_SHEAR, "xy"),
        "shear_y": _moved(_SHEAR, "yx"),
        "translate_x": _moved(_TRANSLATION, "x0"),
        "translate_y": _moved(_TRANSLATION, "y0"),
    }
)
"""By the paper's names (section 3.1)."""
