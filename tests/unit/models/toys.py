"""A toy space for the network tests: small enough for hundreds of networks, irregular enough to expose mix-ups."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch
from torch import Tensor

from models.architecture import Architecture, Pool

LARGEST = Architecture(
    embed_dim=28,
    depth=3,
    num_heads=(4, 3, 4),
    mlp_ratio=(3.0, 2.5, 3.0),
    head_dim=6,
    img_size=12,
    patch_size=3,
    in_chans=3,
    num_classes=5,
)


def random_subnet(rng: random.Random, *, largest: Architecture = LARGEST) -> Architecture:
    """Any member of the toy space: width, depth, heads, ratios, head width and head present or not."""
    depth = rng.randint(1, largest.depth)
    return Architecture(
        embed_dim=rng.randint(4, largest.embed_dim),
        depth=depth,
        num_heads=tuple(rng.randint(1, most) for most in largest.num_heads[:depth]),
        mlp_ratio=tuple(rng.choice((0.5, 1.0, 2.25, most)) for most in largest.mlp_ratio[:depth]),
        head_dim=rng.randint(2, largest.head_dim),
        img_size=largest.img_size,
        patch_size=largest.patch_size,
        in_chans=largest.in_chans,
        num_classes=rng.choice((0, largest.num_classes)),
        pool=Pool(largest.pool),
        norm_eps=largest.norm_eps,
        rel_pos=largest.rel_pos,
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomise(parameters: Mapping[str, Tensor], generator: torch.Generator) -> None:
    """Overwrite all values, norms and biases too: their defaults (1, 0) would hide a wrong slice."""
    with torch.no_grad():
        for tensor in parameters.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
