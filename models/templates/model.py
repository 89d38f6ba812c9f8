"""Loads the network of this folder; needs only torch and timm.

    from model import load
    network = load("path/of/this/folder")   # timm's VisionTransformer in eval mode
    logits = network(images)                # (B, channels, size, size), normalised as architecture.json says

The blocks are timm's own; only their head counts and MLP widths differ from block to block, which timm's constructor
cannot say in its arguments.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn


def build(genes: dict[str, Any], device: str | torch.device = "cpu") -> VisionTransformer:
    """The network that ``architecture.json`` describes, with arbitrary weights."""

    def block(*, dim: int, depth: int, num_heads: int, mlp_ratio: float, **options: Any) -> Block:
        made = Block(dim=dim, num_heads=1, mlp_ratio=genes["mlp_ratio"][depth], **options)
        # timm derives the width of a head from the token width; here it is a gene of its own.
        made.attn = Attention(
            dim,
            num_heads=genes["num_heads"][depth],
            attn_head_dim=genes["head_dim"],
            qkv_bias=True,
            device=options.get("device"),
        )
        return made

    return VisionTransformer(
        img_size=genes["img_size"],
        patch_size=genes["patch_size"],
        in_chans=genes["in_chans"],
        num_classes=genes["num_classes"],
        global_pool=genes["pool"],
        embed_dim=genes["embed_dim"],
        depth=genes["depth"],
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
