"""Masked autoencoding (He et al. 2022, MAE): masks, the decoder and the reconstruction loss.

Legend: B images, C channels, H, W pixels, N patches of an image, V visible (kept) patches, d encoder width,
e decoder width, P values of one patch (row, column, channel order).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from models.architecture import Architecture, count_visible
from models.initialisation import materialise
from models.layers import PrefixLinear

_MLP_RATIO = 4.0
_VARIANCE_EPS = 1e-6  # MAE's: a patch of one colour has no variance to divide by


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

    @property
    def ids_hidden(self) -> Tensor:
        """int64 (B, N - V), the hidden patches in the order in which ``ids_restore`` counts them."""
        return self.ids_restore.argsort(dim=1)[:, self.ids_keep.shape[1] :]

    def to(self, device: torch.device | str) -> PatchMask:
        """The same mask on another device."""
        return PatchMask(self.ids_keep.to(device), self.ids_restore.to(device), self.hidden.to(device))

    def of(self, images: slice) -> PatchMask:
        """The mask of some of the images."""
        return PatchMask(self.ids_keep[images], self.ids_restore[images], self.hidden[images])


def visible_patches(num_patches: int, mask_ratio: float) -> int:
    """As :func:`models.architecture.count_visible`, for training.

    Raises:
        ValueError: when that leaves no patch to see or none to reconstruct.
    """
    keep = count_visible(num_patches, mask_ratio)
    if not 0 < keep < num_patches:
        raise ValueError(
            f"mask ratio {mask_ratio} leaves {keep} of {num_patches} patches visible, allowed is 1 to {num_patches - 1}"
        )
    return keep


def pick_patches(t_BTd: Tensor, ids_BM: Tensor) -> Tensor:
    """The class token and some patches (B, 1 + M, d) of tokens that begin with it, in the order of the ids."""
    ids = ids_BM.unsqueeze(-1).expand(-1, -1, t_BTd.shape[-1])
    return torch.cat((t_BTd[:, :1], t_BTd[:, 1:].gather(1, ids)), dim=1)


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


def patchify(x_BCHW: Tensor, patch_size: int) -> Tensor:
    """Images as rows of patch values (B, N, P), each patch in row, column, channel order.

    Raises:
        ValueError: when the sides are not multiples of ``patch_size``.
    """
    if x_BCHW.ndim != 4 or x_BCHW.shape[2] % patch_size or x_BCHW.shape[3] % patch_size:
        raise ValueError(f"images have shape {tuple(x_BCHW.shape)}, expected (B, C, H, W), sides / {patch_size}")
    patches = x_BCHW.unfold(2, patch_size, patch_size).unfold(3, patch_size, patch_size)  # B C rows cols p p
    return patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Size of a :class:`MaskedDecoder`; MAE's own is 512 wide with 8 blocks of 16 heads.

    Attributes:
        dim: token width, a multiple of 4 (two axes, sine and cosine) and of ``num_heads``.
        depth: number of blocks.
        num_heads: attention heads of each block.
    """

    dim: int
    depth: int
    num_heads: int

    def __post_init__(self) -> None:
        if self.dim < 1 or self.dim % 4 or self.num_heads < 1 or self.dim % self.num_heads:
            raise ValueError(
                f"decoder width is {self.dim}, allowed is a multiple of 4 and of num_heads {self.num_heads}"
            )
        if self.depth < 1:
            raise ValueError(f"decoder depth is {self.depth}, allowed is at least 1")


class MaskedDecoder(nn.Module):
    """Reconstructs all patches of an image from the encoded visible ones (MAE, section 3).

    It serves every subnet: only the columns of its input layer follow the encoder's width, the rest is not sliced.
    Hence its positions can be the fixed sine-cosine table of MAE.

    Args:
        encoder: the widest encoder, the architecture of the supernet.
        config: size of the decoder.
        generator: source of the initial weights, which live on its device.
    """

    positions_Te: Tensor

    def __init__(self, encoder: Architecture, config: DecoderConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.embed = PrefixLinear(encoder.embed_dim, config.dim, device="meta")
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.dim, device="meta"))
        self.blocks = nn.Sequential(*(_block(config, encoder.norm_eps) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.dim, eps=encoder.norm_eps, device="meta")
        self.predict = nn.Linear(config.dim, encoder.patch_dim, device="meta")
        materialise(self, generator)
        positions = torch.cat((torch.zeros(1, config.dim), sincos_positions(encoder.grid_size, config.dim)))
        self.register_buffer("positions_Te", positions.to(generator.device), persistent=False)

    def forward(self, t_BTd: Tensor, ids_restore: Tensor) -> Tensor:
        """Predict the values of all patches.

        Args:
            t_BTd: encoder tokens (B, 1 + V, d) after the encoder's final norm, class token first.
            ids_restore: (B, N) of the mask that the encoder saw.

        Returns:
            (B, N, P), patches in image order, values in the order of :func:`patchify`.

        Raises:
            ValueError: when the ids do not fit the tokens or the decoder's grid.
        """
        return self.pixels(self.tokens(t_BTd, ids_restore))

    def pixels(self, t_BTe: Tensor) -> Tensor:
        """Values (B, N, P) of all patches from what :meth:`tokens` gave."""
        predicted: Tensor = self.predict(t_BTe)
        return predicted[:, 1:]

    def tokens(self, t_BTd: Tensor, ids_restore: Tensor) -> Tensor:
        """Tokens (B, 1 + N, e) of all patches after the decoder's norm, class token first, patches in image order.

        Arguments and errors as for :meth:`forward`.
        """
        num_patches = self.positions_Te.shape[0] - 1
        if tuple(ids_restore.shape) != (t_BTd.shape[0], num_patches):
            found = tuple(ids_restore.shape)
            raise ValueError(f"ids_restore has shape {found}, expected ({t_BTd.shape[0]}, {num_patches})")
        t_BTe = self.embed(t_BTd)
        visible_BVe = t_BTe[:, 1:]
        hidden = self.mask_token.expand(t_BTe.shape[0], num_patches - visible_BVe.shape[1], -1)
        shuffled_BNe = torch.cat((visible_BVe, hidden.to(t_BTe.dtype)), dim=1)
        patches_BNe = shuffled_BNe.gather(1, ids_restore.unsqueeze(-1).expand(-1, -1, shuffled_BNe.shape[-1]))
        t_BTe = torch.cat((t_BTe[:, :1], patches_BNe), dim=1) + self.positions_Te
        decoded: Tensor = self.norm(self.blocks(t_BTe))
        return decoded


def _block(config: DecoderConfig, norm_eps: float) -> Block:
    return Block(
        config.dim,
        config.num_heads,
        _MLP_RATIO,
        qkv_bias=True,
        norm_layer=partial(nn.LayerNorm, eps=norm_eps),  # type: ignore[arg-type]  # any callable that makes a norm
        device="meta",
    )


def sincos_positions(grid_size: int, dim: int) -> Tensor:
    """Fixed position table (grid_size ** 2, dim) in row-major order, float32.

    The first half of the channels holds the column, the second the row; each half is sine then cosine at wavelengths
    from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5, for two axes).
    """
    quarter = dim // 4
    # In float64, so that the table does not depend on a device's sine.
    wavenumbers = 10_000.0 ** -(torch.arange(quarter, dtype=torch.float64) / quarter)
    angles = torch.outer(torch.arange(grid_size, dtype=torch.float64), wavenumbers)
    axis = torch.cat((angles.sin(), angles.cos()), dim=1)
    columns, rows = axis.repeat(grid_size, 1), axis.repeat_interleave(grid_size, dim=0)
    return torch.cat((columns, rows), dim=1).float()


def reconstruction_loss(
    predicted_BNP: Tensor, x_BCHW: Tensor, hidden_BN: Tensor, patch_size: int, *, norm_targets: bool = True
) -> Tensor:
    """Mean squared error at the hidden patches, by default with targets normalised to mean 0 and variance 1 each.

    The mean runs over all hidden patches of the batch (MAE, section 3); the variance divides by P - 1.  The loss is
    computed in float32 whatever the precision of the network.

    Args:
        predicted_BNP: the decoder's output.
        x_BCHW: the images that were masked.
        hidden_BN: 1 at hidden patches; with no hidden patch at all the loss is NaN, not a silent 0.
        patch_size: side of a patch in pixels.
        norm_targets: normalise the values of each patch; MAE learns better features so.

    Returns:
        A scalar.

    Raises:
        ValueError: when the shapes do not fit or a patch has a single value, which has no variance.
    """
    target_BNP = pixel_target(x_BCHW, patch_size, norm_targets=norm_targets)
    return hidden_error(predicted_BNP, target_BNP, hidden_BN)


def pixel_target(x_BCHW: Tensor, patch_size: int, *, norm_targets: bool = True) -> Tensor:
    """What a decoder is to predict of images: the values of each patch (B, N, P), float32, normalised or as they are.

    Raises:
        ValueError: as for :func:`patchify`, and when a patch has a single value, which has no variance.
    """
    target_BNP = patchify(x_BCHW, patch_size).float()
    return _normalised(target_BNP) if norm_targets else target_BNP


def hidden_error(predicted_BNP: Tensor, target_BNP: Tensor, hidden_BN: Tensor) -> Tensor:
    """Mean squared error at the hidden patches of the whole batch, in float32; no gradient reaches the target.

    Raises:
        ValueError: when the shapes do not fit.
    """
    if predicted_BNP.shape != target_BNP.shape or hidden_BN.shape != target_BNP.shape[:2]:
        raise ValueError(
            f"prediction {tuple(predicted_BNP.shape)} and mask {tuple(hidden_BN.shape)} do not fit "
            f"target {tuple(target_BNP.shape)}"
        )
    target_BNP = target_BNP.detach().float()
    error_BN = (predicted_BNP.float() - target_BNP).square().mean(dim=-1)
    return (error_BN * hidden_BN).sum() / hidden_BN.sum()


def _normalised(patches_BNP: Tensor) -> Tensor:
    if patches_BNP.shape[-1] < 2:
        raise ValueError("a patch has 1 value, allowed is at least 2")
    mean = patches_BNP.mean(dim=-1, keepdim=True)
    variance = patches_BNP.var(dim=-1, keepdim=True, correction=1)
    return (patches_BNP - mean) / (variance + _VARIANCE_EPS).sqrt()
