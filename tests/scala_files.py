"""Toy checkpoints as Scala's released training code writes them, and what that code computes from them.

The forward is written from the paper's and the released code's rules alone, row by row, and shares nothing with the
supernet: it is what an import must equal.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tests.published_files import State, state_of, vit

WIDTH, HEADS, DEPTH, CLASSES, SMALLEST, STEP = 48, 3, 2, 5, 0.25, 0.125
"""Heads of 16 channels, trained at 4, 6, ..., 16 of them."""

NORM_EPS = 1e-5  # the default of torch's functional layer norm


def scala_state(*, distilled: bool = True) -> State:
    kind = VisionTransformerDistilled if distilled else VisionTransformer
    return state_of(vit(kind, embed_dim=WIDTH, num_heads=HEADS, depth=DEPTH, num_classes=CLASSES))


def scala_checkpoint(state: State | None = None, **arguments: object) -> dict[str, Any]:
    """What ``torch.save`` gets: weights, their average, the optimizer and the arguments."""
    state = state or scala_state()
    told = {
        "model": "deit_small_distilled_patch16_224_scala",
        "num_heads": HEADS,
        "smallest_ratio": SMALLEST,
        "largest_ratio": 1.0,
        "granularity": STEP,
        "lr": 2e-3,
        "opt_betas": None,
        **arguments,
    }
    return {
        "model": state,
        "optimizer": {"state": {0: {"step": 7, "exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-3}]},
        "lr_scheduler": {"base_values": [1e-3]},
        "epoch": 99,
        "model_ema": {name: tensor * 2 for name, tensor in state.items()},
        "scaler": {"scale": 65536.0},
        "args": argparse.Namespace(**{name: value for name, value in told.items() if value is not ...}),
    }


@torch.no_grad()
def scala_logits(state: State, x: Tensor, ratio: float, smallest: float = SMALLEST) -> Tensor:
    """What the released code answers at a width in eval mode."""

    def cut(tensor: Tensor, axis: int, count: int) -> Tensor:
        ids = range(count) if ratio in (smallest, 1.0) else range(tensor.shape[axis] - count, tensor.shape[axis])
        return tensor.index_select(axis, torch.tensor(list(ids)))

    d = int(ratio * WIDTH)

    def linear(name: str, t: Tensor, rows: int, columns: int) -> Tensor:
        weight = cut(cut(state[f"{name}.weight"], 0, rows), 1, columns)
        return t @ weight.T + cut(state[f"{name}.bias"], 0, rows)

    def norm(name: str, t: Tensor) -> Tensor:
        centred = t - t.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
        return unit * cut(state[f"{name}.weight"], 0, d) + cut(state[f"{name}.bias"], 0, d)

    kernel, bias = cut(state["patch_embed.proj.weight"], 0, d), cut(state["patch_embed.proj.bias"], 0, d)
    patches = F.conv2d(x, kernel, bias, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    names = [name for name in ("cls_token", "dist_token") if name in state]
    t = torch.cat([*(cut(state[name], 2, d).expand(len(x), -1, -1) for name in names), patches], dim=1)
    t = t + cut(state["pos_embed"], 2, d)
    for i in range(DEPTH):
        block = f"blocks.{i}"
        q, k, v = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", t), 3 * d, d).split(d, dim=-1)
        heads = [
            torch.softmax(a @ b.transpose(1, 2) / (WIDTH / HEADS) ** 0.5, dim=-1) @ c
            for a, b, c in zip(*(u.split(d // HEADS, dim=-1) for u in (q, k, v)), strict=True)
        ]
        t = t + linear(f"{block}.attn.proj", torch.cat(heads, dim=-1), d, d)
        hidden = linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", t), 4 * d, d)
        t = t + linear(f"{block}.mlp.fc2", F.gelu(hidden), d, 4 * d)
    t = norm("norm", t)
    said = [linear(head, t[:, i], CLASSES, d) for i, head in enumerate(("head", "head_dist")[: len(names)])]
    return torch.stack(said).mean(0)
