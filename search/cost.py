"""Closed-form size and cost of one architecture, without building it.

MACs are multiply-accumulates of one image in a full forward pass: patch projection, all linear layers, *both
attention products* and the head (both heads of a distilled network), on ``N = num_patches + num_prefix`` tokens (the
class token counts).  Biases, norms, softmax, GELU and pooling are left out, as the papers do.  Counters that follow
module calls miss the attention products, which a fused kernel hides, and slicing; a formula misses nothing.

Relative position is priced as if its tables were expanded to one vector for each pair of tokens (``N * N *
head_dim`` for the keys and again for the values), which doubles the attention term.  The networks here compute the
same in less (``models.templates.model``), but a limit should not depend on how a sum is ordered.  AutoFormer's own
counter prices it otherwise and counts the class token twice, so its MACs differ by some per cent; its parameters are
equal to the unit.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.architecture import REL_POS_LENGTH, REL_POS_TABLES, Architecture

MILLION = 1_000_000
GIGA = 1_000_000_000

BYTES_PER_PARAMETER = 4
"""Weights are stored and run as 32-bit floats."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Size and work of one architecture.

    Attributes:
        params: number of parameters.
        macs: multiply-accumulates of one image, see the module's convention.
    """

    params: int
    macs: int

    @property
    def params_m(self) -> float:
        """Parameters in millions."""
        return self.params / MILLION

    @property
    def gmacs(self) -> float:
        """Multiply-accumulates in 1e9."""
        return self.macs / GIGA


def cost(arch: Architecture) -> Cost:
    """Parameters and MACs of ``arch``."""
    return Cost(params=params(arch), macs=macs(arch))


def params(arch: Architecture) -> int:
    """Number of parameters: embedding, positions, prefix tokens, blocks, final norm and (if any) heads."""
    d = arch.embed_dim
    embedding = (arch.patch_dim + 1) * d + (arch.num_patches + 2 * arch.num_prefix) * d
    rel_pos = len(REL_POS_TABLES) * REL_POS_LENGTH * arch.head_dim if arch.rel_pos else 0
    blocks = sum(
        (6 if arch.layer_scale else 4) * d + 3 * q * (d + 1) + (q + 1) * d + f * (d + 1) + (f + 1) * d + rel_pos
        for q, f in zip(arch.qkv_dims, arch.mlp_dims, strict=True)
    )
    return embedding + blocks + 2 * d + arch.num_prefix * arch.num_classes * (d + 1)


def weight_bytes(arch: Architecture) -> int:
    """Bytes of all parameters."""
    return BYTES_PER_PARAMETER * params(arch)


def macs(arch: Architecture) -> int:
    """Multiply-accumulates of one image, by the module's convention."""
    d = arch.embed_dim
    n = arch.num_patches + arch.num_prefix
    attention = 4 if arch.rel_pos else 2
    blocks = sum(
        4 * n * d * q + 2 * n * d * f + attention * n * n * q for q, f in zip(arch.qkv_dims, arch.mlp_dims, strict=True)
    )
    return arch.num_patches * arch.patch_dim * d + blocks + arch.num_prefix * arch.num_classes * d
