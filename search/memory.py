"""Closed form of the memory that one network needs to classify one image, without building it.

The convention is that of the exported network in plain PyTorch: 32-bit floats, batch 1, no gradients, fused attention
(no tensor of all pairs of tokens), and the image itself counted.  Counted is what lives at the same time when it is
most: all weights, and the tensors that the forward pass still holds, among them each block's input until the block has
ended.  Not counted is what no tensor holds: the interpreter, the libraries and the scratch space inside a kernel.

Legend: T tokens, d width of a token, h heads, D width of a head, q = h D, f hidden width of an MLP.
"""

from __future__ import annotations

from models.architecture import REL_POS_LENGTH, Architecture
from search.cost import BYTES_PER_PARAMETER, weight_bytes

_BYTES_PER_FLOAT = BYTES_PER_PARAMETER
_FLOATS_PER_INDEX = 2  # indices have 64 bits


def peak_bytes(arch: Architecture) -> int:
    """Weights and the most that the forward pass of one image holds, in bytes."""
    return weight_bytes(arch) + live_bytes(arch)


def live_bytes(arch: Architecture) -> int:
    """The most that the forward pass of one image holds beside the weights, in bytes.

    Blocks come one after the other, so it is the largest of the stages, whatever the order of the blocks.  From the
    second block on the embedded image is held as well, which is granted to the first too: the result is exact unless
    the first block alone is the largest, and then too much by that image, ``T * d`` numbers, at most.
    """
    attention = _relative_attention if arch.rel_pos else _attention
    blocks = [attention(arch, heads) for heads in set(arch.num_heads)]
    blocks += [_mlp(arch, hidden) for hidden in set(arch.mlp_dims)]
    held = _tokens(arch) * arch.embed_dim if arch.depth > 1 else 0
    stages = (_embedding(arch), held + max(blocks), _head(arch))
    image = arch.in_chans * arch.img_size**2
    return _BYTES_PER_FLOAT * (image + max(stages))


def _tokens(arch: Architecture) -> int:
    return arch.num_patches + arch.num_prefix


def _embedding(arch: Architecture) -> int:
    """Patches, then all tokens, then all tokens with their positions."""
    return (arch.num_patches + 2 * _tokens(arch)) * arch.embed_dim


def _head(arch: Architecture) -> int:
    """The normed tokens beside the logits; those of two heads, their sum and their mean in a distilled network."""
    logits = 4 * arch.num_classes if arch.distilled else arch.num_classes + arch.embed_dim
    return _tokens(arch) * arch.embed_dim + logits


def _attention(arch: Architecture, heads: int) -> int:
    """Input, normed input, q, k, v, and the mix; then either the kernel's normaliser or the projection."""
    width, tokens = arch.embed_dim, _tokens(arch)
    return tokens * (2 * width + 4 * heads * arch.head_dim + max(width, heads))


def _mlp(arch: Architecture, hidden: int) -> int:
    """Input of the block, that of the MLP and its norm; then the hidden layer before and after GELU, or the output."""
    width = arch.embed_dim
    return _tokens(arch) * (3 * width + max(2 * hidden, hidden + width))


def _relative_attention(arch: Architecture, heads: int) -> int:
    """The largest moment of attention with relative position (``relative_attention`` of an exported network)."""
    tokens, width, head_dim = _tokens(arch), arch.embed_dim, arch.head_dim
    lines = arch.grid_size + 1
    entries = 2 * REL_POS_LENGTH
    inputs = tokens * (2 * width + 3 * heads * head_dim + 2 * _FLOATS_PER_INDEX) + 2 * entries * head_dim
    # Of each pair of token and line (row or column): its distance and its entry of a table, as indices.
    indices = _FLOATS_PER_INDEX * (lines + 2 * tokens * 2 * lines)
    picked = 2 * lines  # numbers by which queries and keys are extended
    extended = head_dim + picked
    by_head = max(
        picked + entries + picked,  # products with all entries, and those picked from them
        picked + 4 * extended + 1,  # q, k, v and the mix, and the kernel's normaliser
        picked + extended + 2 * entries,  # the mix, and its sums by entry before and after they are filled
        picked + extended + entries + 2 * head_dim,  # the values of the entries, and their sum with the mix
    )
    # The mix of several heads is copied to lie token by token, then projected.
    projected = (1 if heads == 1 else 2) * heads * head_dim + width
    return inputs + max(indices + tokens * heads * by_head, tokens * projected)
