"""The frozen teacher: any timm ``VisionTransformer`` that saw more than the student did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from models.architecture import Architecture
from models.extract import build_timm, check_state
from models.supernet import check_blocks


class TeacherError(ValueError):
    """The network cannot serve as a teacher; the message says what it lacks."""


class FrozenTeacher(nn.Module):
    """Answers with the features of a frozen network at the visible patches of an image.

    The network stays in eval mode and gets no gradient, whatever is called on the module around it.

    Args:
        network: a timm ``VisionTransformer`` with class token and learned positions; register tokens are welcome.

    Raises:
        TeacherError: when the network lacks a class token or a position table.
    """

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        if network.cls_token is None or network.pos_embed is None:
            lacking = "class token" if network.cls_token is None else "position table"
            raise TeacherError(f"the teacher has no {lacking}, allowed are Vision Transformers with both")
        self.network = network.requires_grad_(False).eval()

    @classmethod
    def load(cls, path: Path, arch: Architecture) -> Self:
        """Read a teacher of known architecture from a safetensors file under timm's names.

        Raises:
            FileNotFoundError: when there is no such file.
            StateError: when its tensors are not exactly those of ``arch``.
        """
        state = load_file(path)
        check_state(state, arch)
        network = build_timm(arch)
        network.load_state_dict(state)
        return cls(network)

    @property
    def embed_dim(self) -> int:
        """Width of the features."""
        return self.network.embed_dim

    def train(self, mode: bool = True) -> Self:
        """Does nothing: dropout and stochastic depth of the teacher stay off."""
        return self

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.network.blocks)

    def visible_tokens(self, x_BCHW: Tensor, ids_keep: Tensor) -> Tensor:
        """Output of the last block, before the final norm, when only some patches are seen; see :meth:`features`."""
        return self.features(x_BCHW, ids_keep, after=(self.depth,))[0]

    @torch.no_grad()
    def features(self, x_BCHW: Tensor, ids_keep: Tensor | None, *, after: Sequence[int]) -> tuple[Tensor, ...]:
        """Tokens after each of some blocks, when only some patches are seen.

        Args:
            x_BCHW: images of the size that the teacher was built for.
            ids_keep: int64 (B, V), the visible patches; None shows all of them, in image order.
            after: numbers of blocks, from 1 to the depth, ascending; blocks beyond the last of them are not run.

        Returns:
            For each number (B, 1 + V, D), class token first, then the patches in the order of ``ids_keep``; register
            tokens take part in the attention but are not returned.

        Raises:
            ValueError: when the images or ids have the wrong shape, or there is no such block.
        """
        check_blocks(after, self.depth)
        net = self.network
        expected = (net.in_chans, *net.patch_embed.img_size)
        ids_fit = ids_keep is None or ids_keep.shape[:-1] == x_BCHW.shape[:1]
        if x_BCHW.ndim != 4 or tuple(x_BCHW.shape[1:]) != expected or not ids_fit:
            found = f"{tuple(x_BCHW.shape)}, ids_keep {None if ids_keep is None else tuple(ids_keep.shape)}"
            raise ValueError(f"images have shape {found}, expected (B, {', '.join(map(str, expected))}), (B, visible)")
        t_BTD = net._pos_embed(net.patch_embed(x_BCHW))
        prefix = net.num_prefix_tokens
        patches_BVD = t_BTD[:, prefix:]
        if ids_keep is not None:
            # Positions are given before patches are dropped, so each kept patch has its own.
            patches_BVD = patches_BVD.gather(1, ids_keep.unsqueeze(-1).expand(-1, -1, t_BTD.shape[-1]))
        t_BTD = net.norm_pre(torch.cat((t_BTD[:, :prefix], patches_BVD), dim=1))
        kept: dict[int, Tensor] = {}
        for i in range(after[-1]):
            t_BTD = net.blocks[i](t_BTD)
            if i + 1 in after:
                kept[i + 1] = t_BTD
        return tuple(torch.cat((kept[n][:, :1], kept[n][:, prefix:]), dim=1) for n in after)
