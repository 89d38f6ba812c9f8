"""Stochastic depth: whole branches of blocks are skipped at random during training (Huang et al. 2016).

timm's networks can do this themselves, with draws from the global generator. Here draws come from the run's streams,
and what is added to the network leaves its weights, its names and its exports as they are.

Legend: B images, N tokens, E width, R residual branches (two a block).
"""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from workers.training.parts import WHOLE
from workers.training.streams import PathPart, torch_stream


class SkippedBranch(nn.Module):
    """What a residual branch gives, or nothing, image by image; in eval mode always what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_B11: Tensor | None = None

    def forward(self, x_BNE: Tensor) -> Tensor:
        """Zeros for images that skip the branch; others are enlarged so that the mean stays."""
        if not self.training or self.scale_B11 is None:
            return x_BNE
        return x_BNE * self.scale_B11.to(x_BNE.dtype)


class StochasticDepth:
    """Skips each of the two branches of each block with a probability that rises linearly with the depth.

    Args:
        network: its blocks take part from now on.
        rate: probability of the last block; the first block is never skipped.
        seed: of the run.
        stage: names the stream.
    """

    def __init__(self, network: VisionTransformer, rate: float, seed: int, stage: tuple[PathPart, ...]) -> None:
        self._branches: list[SkippedBranch] = []
        self._seed, self._stage = seed, stage
        self._rate, self._depth = rate, len(network.blocks)
        for block in network.blocks:
            block.drop_path1, block.drop_path2 = SkippedBranch(), SkippedBranch()
            self._branches += [block.drop_path1, block.drop_path2]

    def draw(self, images: int, step: int, device: torch.device, part: slice = WHOLE) -> None:
        """Choose what the images of a step skip, for the forward of a part of them."""
        generator = torch_stream(self._seed, *self._stage, "depth", step)
        scales = branch_scales(self._rate, self._depth, images, generator)
        for branch, scale_B11 in zip(self._branches, scales[:, part].to(device), strict=True):
            branch.scale_B11 = scale_B11


def branch_scales(rate: float, depth: int, images: int, generator: torch.Generator) -> Tensor:
    """Draw what the branches of a network give to each image: nothing, or more, so that the mean stays.

    Args:
        rate: probability of the last block to be skipped; the first block never is.
        depth: number of blocks.
        images: B.
        generator: source of the draws.

    Returns:
        (R, B, 1, 1) on the generator's device, branches in the order in which they run: ``drops`` of
        :meth:`models.supernet.Supernet.logits`.
    """
    kept_R11 = 1 - drop_rates(rate, depth).repeat_interleave(2)[:, None, None, None]
    drawn = torch.rand(2 * depth, images, 1, 1, generator=generator)
    return (drawn < kept_R11) / kept_R11


def drop_rates(rate: float, depth: int) -> Tensor:
    """Probability of each block: from 0 for the first one to ``rate`` for the last one, in equal steps."""
    return torch.linspace(0, rate, depth)
