"""Masked autoencoding (He et al. 2022, MAE): masks, the decoder and the reconstruction loss.

Legend: B images, C channels, H, W pixels, N patches of an image, V visible (kept) patches, d encoder width,
e decoder width, P values of one patch (row, column, channel order).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_RATIO_SLACK = 1e-9  # 10 * (1 - 0.9) is just below 1 in floating point


@dataclass(frozen=True, slots=True)
class PatchMask:
    """Which patches of each image are seen.

    Attributes:
        ids_keep: int64 (B, V), the visible patches in the order in which the encoder gets them.
        ids_restore: int64 (B, N), for each patch its place in "visible ones, then hidden ones".
        hidden: float32 (B, N), 1 where the patch is hidden, else 0.
    """

    ids_keep: Tensor
    ids_restore: Tensor
    hidden: Tensor

    def to(self, device: torch.device | str) -> PatchMask:
        """The same mask on another device."""
        return PatchMask(self.ids_keep.to(device), self.ids_restore.to(device), self.hidden.to(device))


def visible_patches(num_patches: int, mask_ratio: float) -> int:
    """Patches that stay visible when the share ``mask_ratio`` is hidden, rounded down as in MAE.

    Raises:
        ValueError: when that leaves no patch to see or none to reconstruct.
    """
    keep = int(num_patches * (1 - mask_ratio) + _RATIO_SLACK)
    if not 0 < keep < num_patches:
        raise ValueError(
            f"mask ratio {mask_ratio} leaves {keep} of {num_patches} patches visible, allowed is 1 to {num_patches - 1}"
        )
    return keep


def random_masking(batch: int, num_patches: int, keep: int, generator: torch.Generator) -> PatchMask:
    """Draw an independent uniformly random mask for each image, on the generator's device (MAE, section 3).

    Raises:
        ValueError: when ``keep`` is not in 1..num_patches.
    """
    if not 1 <= keep <= num_patches:
        raise ValueError(f"{keep} visible patches, allowed is 1 to {num_patches}")
    noise_BN = torch.rand(batch, num_patches, generator=generator, device=generator.device)
    # Stable, so that equal draws order alike on every machine.
    order_BN = noise_BN.argsort(dim=1, stable=True)
    ids_restore = order_BN.argsort(dim=1)
    return PatchMask(order_BN[:, :keep], ids_restore, (ids_restore >= keep).float())
