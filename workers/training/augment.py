"""Random changes of whole batches, the same in all trainings: draws come from a passed generator on the CPU.

Each image of a batch is changed by draws of its own. All functions return new tensors of the same shape and type, on
the device of the input, and never wait for that device.

Legend: B images, C channels, H, W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def _shifted(batch: int, side: int, max_shift: float, generator: torch.Generator) -> Tensor:
    """Source index (B, side) of each pixel along one axis."""
    reach = int(max_shift * side)
    shift = torch.randint(-reach, reach + 1, (batch, 1), generator=generator)
    return (torch.arange(side) + shift).clamp(0, side - 1)
