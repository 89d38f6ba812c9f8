"""Loads the network of this folder; needs only torch and timm.

    from model import load
    network = load("path/of/this/folder")   # timm's VisionTransformer (or its VisionTransformerDistilled) in eval mode
    logits = network(images)                # (B, channels, size, size), normalised as architecture.json says

The blocks are timm's own; only their head counts and MLP widths differ from block to block, which timm's constructor
cannot say in its arguments.  With ``rel_pos`` their attention is replaced by :class:`RelativeAttention`.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from timm.layers.attention import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

REACH = 14  # patches farther apart than this, along a row or a column, count as so far apart
TABLE_LENGTH = 2 * REACH + 2  # one vector for pairs with the class token, then one for each distance


def places(ids: Tensor, grid: int) -> Tensor:
    """(B, 1 + V, 2): row and column of patches ``ids`` (B, V), counted from 1, after a class token at (0, 0)."""
    return F.pad(torch.stack((ids // grid, ids % grid), dim=-1) + 1, (0, 0, 1, 0))


def relative_attention(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, at: Tensor, grid: int) -> Tensor:
    """Attention in which key and value of a token depend on where it lies from the query.

    To each key is added a vector for the distance in rows and one for the distance in columns, to each value likewise
    (AutoFormer, Chen et al. 2021, section 3.3).  No pair of tokens gets a vector of its own: a query is extended by its
    products with the tables, one for each row and each column of the grid, and keys pick two of them by ones and
    zeros.  The same ones and zeros beside the values tell how much attention each row and column got.

    q, k, v: (B, h, T, D); keys, values: (2 * TABLE_LENGTH, D), rows before columns; at: (B or 1, T, 2), see ``places``.
    """
    heads = (q.shape[0], q.shape[1], q.shape[2], -1)
    lines = torch.arange(grid + 1, device=q.device)
    distance = (lines - at.unsqueeze(-1)).clamp(-REACH, REACH) + REACH + 1
    entry = distance.where((at.unsqueeze(-1) > 0) & (lines > 0), 0)
    entry = torch.stack((entry[:, :, 0], entry[:, :, 1] + TABLE_LENGTH), dim=2).flatten(2).unsqueeze(1).expand(heads)
    place = (at.unsqueeze(-1) == lines).flatten(2).unsqueeze(1).expand(heads).to(q.dtype)
    mixed = F.scaled_dot_product_attention(
        torch.cat((q, (q @ keys.T).gather(-1, entry)), dim=-1),
        torch.cat((k, place), dim=-1),
        torch.cat((v, place), dim=-1),
        scale=q.shape[-1] ** -0.5,
    )
    width = v.shape[-1]
    by_entry = mixed.new_zeros(*heads[:3], len(values)).scatter_add(-1, entry, mixed[..., width:])
    return mixed[..., :width] + by_entry @ values


class RelativeAttention(Attention):
    """timm's attention with relative position on keys and values, for all patches of an image in order."""

    rel_pos_k_rows: nn.Parameter
    rel_pos_k_cols: nn.Parameter
    rel_pos_v_rows: nn.Parameter
    rel_pos_v_cols: nn.Parameter

    def __init__(self, dim: int, grid: int, **options: Any) -> None:
        super().__init__(dim, **options)
        self.grid = grid
        for name in ("rel_pos_k_rows", "rel_pos_k_cols", "rel_pos_v_rows", "rel_pos_v_cols"):
            table = torch.empty(TABLE_LENGTH, self.head_dim, device=options.get("device"))
            self.register_parameter(name, nn.Parameter(table))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, T, d) to (B, T, d); a mask is not supported."""
        if x.shape[1] != self.grid**2 + 1 or attn_mask is not None or is_causal:
            raise ValueError(f"expected {self.grid**2 + 1} tokens and no mask, found {x.shape[1]}")
        at = places(torch.arange(self.grid**2, device=x.device).unsqueeze(0), self.grid)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        keys = torch.cat((self.rel_pos_k_rows, self.rel_pos_k_cols))
        values = torch.cat((self.rel_pos_v_rows, self.rel_pos_v_cols))
        mixed = relative_attention(q, k, v, keys, values, at, self.grid)
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected


def build(genes: dict[str, Any], device: str | torch.device = "cpu") -> VisionTransformer:
    """The network that ``architecture.json`` describes, with arbitrary weights."""
    attention: Callable[..., Attention] = Attention
    if genes["rel_pos"]:
        attention = partial(RelativeAttention, grid=genes["img_size"] // genes["patch_size"])

    def block(*, dim: int, depth: int, num_heads: int, mlp_ratio: float, **options: Any) -> Block:
        made = Block(dim=dim, num_heads=1, mlp_ratio=genes["mlp_ratio"][depth], **options)
        # timm derives the width of a head from the token width; here it is a gene of its own.
        made.attn = attention(
            dim,
            num_heads=genes["num_heads"][depth],
            attn_head_dim=genes["head_dim"],
            qkv_bias=True,
            device=options.get("device"),
        )
        return made

    # Networks from before there was either say nothing of it.
    family = VisionTransformerDistilled if genes.get("distilled") else VisionTransformer
    return family(
        img_size=genes["img_size"],
        patch_size=genes["patch_size"],
        in_chans=genes["in_chans"],
        num_classes=genes["num_classes"],
        global_pool=genes["pool"],
        embed_dim=genes["embed_dim"],
        depth=genes["depth"],
        init_values=1.0 if genes.get("layer_scale") else None,
        fc_norm=False,  # the norm comes before the pooling, also for average pooling
        norm_layer=partial(nn.LayerNorm, eps=genes["norm_eps"]),
        block_fn=block,  # type: ignore[arg-type]  # any callable that makes a block will do
        device=device,
    )


def load(folder: str | Path) -> VisionTransformer:
    """The trained network, in eval mode on the CPU."""
    folder = Path(folder)
    network = build(json.loads((folder / "architecture.json").read_text(encoding="utf-8")), device="meta")
    network.load_state_dict(load_file(folder / "weights.safetensors"), assign=True)
    return network.eval()
