"""Mixup and CutMix: images of a batch are mixed with their neighbours, and so are their classes.

Legend: B images, C channels, H, W pixels, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How batches are mixed: one draw for the whole batch, as in the recipe of DeiT; the defaults change nothing.

    Attributes:
        mixup: both parameters of the beta distribution that mixup draws the own share from; 0 turns mixup off.
        cutmix: the same of CutMix.
        probability: that a batch is mixed at all.
        cutmix_share: which share of the mixed batches takes CutMix, where both are on.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    probability: float = 1.0
    cutmix_share: float = 0.5

    @property
    def changes_nothing(self) -> bool:
        """True when every batch stays as it is."""
        return self.probability == 0 or (self.mixup == 0 and self.cutmix == 0)

    def apply(self, x_BCHW: Tensor, labels_B: Tensor, classes: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mixed images, and the share of each class in each of them, float (B, K), rows adding up to 1.

        Each image is mixed with the one before it in the batch.

        Args:
            x_BCHW: images.
            labels_B: their classes, int64.
            classes: how many there are.
            rng: source of the draws.
        """
        own = 1.0
        partner_BCHW = x_BCHW.roll(1, dims=0)
        if rng.random() < self.probability:
            if rng.random() < self._cutmix_share():
                own = float(rng.beta(self.cutmix, self.cutmix))
                x_BCHW, own = cutmix(x_BCHW, partner_BCHW, own, rng)
            else:
                own = float(rng.beta(self.mixup, self.mixup))
                x_BCHW = own * x_BCHW + (1 - own) * partner_BCHW
        shares_BK = F.one_hot(labels_B, classes).to(x_BCHW.dtype)
        return x_BCHW, own * shares_BK + (1 - own) * shares_BK.roll(1, dims=0)

    def _cutmix_share(self) -> float:
        if self.mixup and self.cutmix:
            return self.cutmix_share
        return 1.0 if self.cutmix else 0.0


def cutmix(x_BCHW: Tensor, partner_BCHW: Tensor, own: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """A box of each image replaced by the same box of its partner (Yun et al. 2019, equations 1 and 2).

    The box has the image's aspect and the area ``1 - own``; its centre is uniform, and what lies outside of the image
    is cut off.

    Returns:
        The images, and the share of each that is still its own: one minus the area of the box inside the image.
    """
    height, width = x_BCHW.shape[2:]
    side = math.sqrt(1 - own)
    top, bottom = _part(side, height, rng)
    left, right = _part(side, width, rng)
    mixed_BCHW = x_BCHW.clone()
    mixed_BCHW[:, :, top:bottom, left:right] = partner_BCHW[:, :, top:bottom, left:right]
    return mixed_BCHW, 1 - (bottom - top) * (right - left) / (height * width)


def _part(share: float, pixels: int, rng: np.random.Generator) -> tuple[int, int]:
    """First pixel and the one after the last of a part of an axis, around any pixel."""
    length = int(share * pixels)
    start = int(rng.integers(pixels)) - length // 2
    return max(0, start), min(pixels, start + length)
