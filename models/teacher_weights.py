"""From recognised tensors to a network that gives features: the part of ``models.foreign`` that needs torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from timm.layers.activations import QuickGELU
from timm.layers.mlp import Mlp, SwiGLUPacked
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from models.extract import StateError, build_timm
from models.foreign.layout import Activation, VitLayout
from models.foreign.recognition import compare
from models.foreign.tensors import Entries, Entry, Join
from models.masked import sincos_positions

_ACTIVATIONS: Mapping[Activation, Callable[..., nn.Module]] = {
    Activation.GELU: nn.GELU,
    Activation.GELU_TANH: partial(nn.GELU, approximate="tanh"),
    Activation.QUICK_GELU: QuickGELU,
    Activation.SWIGLU: nn.SiLU,
}

_SINCOS_TOLERANCE = 1e-2  # of values up to 1; bfloat16 files are 4e-3 off, learned tables are far from it


def convert(tensors: Mapping[str, Tensor], entries: Entries) -> dict[str, Tensor]:
    """Carry out what :func:`models.foreign.recognition.recognise` has found, in float32.

    Args:
        tensors: of the file, under its names.
        entries: where each tensor comes from.
    """
    return {name: _make(tensors, entry) for name, entry in entries.items()}


def _make(tensors: Mapping[str, Tensor], entry: Entry) -> Tensor:
    parts = [tensors[part.name][:, part.start : part.stop] if part.stop else tensors[part.name] for part in entry.parts]
    parts = [part.detach().to("cpu", torch.float32) for part in parts]
    joined = sum(parts[1:], start=parts[0]) if entry.join is Join.SUM else torch.cat(parts)
    return joined.clone(memory_format=torch.contiguous_format)


def build_vit(layout: VitLayout, state: Mapping[str, Tensor]) -> VisionTransformer:
    """timm's network of this layout with these weights.

    Raises:
        StateError: the tensors are not exactly those of the layout.
    """
    check_tensors(layout, state)
    if layout.is_plain:
        network = build_timm(layout.arch)
        network.load_state_dict(state)
        return network
    arch = layout.arch
    network = VisionTransformer(
        img_size=arch.img_size,
        patch_size=arch.patch_size,
        in_chans=arch.in_chans,
        num_classes=0,
        global_pool="token",
        embed_dim=arch.embed_dim,
        depth=arch.depth,
        num_heads=arch.num_heads[0],
        mlp_ratio=arch.mlp_ratio[0],
        qkv_bias=layout.qkv_bias,
        qk_norm=layout.qk_norm,
        init_values=1.0 if layout.layer_scale else None,
        no_embed_class=not layout.class_position,
        reg_tokens=layout.registers,
        pre_norm=layout.pre_norm,
        final_norm=layout.final_norm,
        fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=arch.norm_eps),
        act_layer=_ACTIVATIONS[layout.activation],
        mlp_layer=SwiGLUPacked if layout.activation is Activation.SWIGLU else Mlp,  # type: ignore[arg-type]  # a partial
        device="meta",
    )
    network.load_state_dict(state, assign=True)
    return network


def check_tensors(layout: VitLayout, state: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not exactly those of the layout.

    Raises:
        StateError: names every tensor at fault.
    """
    faults = compare({name: tuple(tensor.shape) for name, tensor in state.items()}, layout.parameter_shapes())
    if faults:
        raise StateError(str(faults))


def on_grid(layout: VitLayout, state: Mapping[str, Tensor], grid: int) -> tuple[VitLayout, dict[str, Tensor]]:
    """The same network for another number of patches: its positions are resampled, bicubic with antialiasing.

    It is what timm does when it loads weights at another image size (``resample_abs_pos_embed``), so a teacher resized
    here equals timm's ``create_model(..., img_size=...)``.

    Raises:
        StateError: the tensors are not exactly those of the layout.
    """
    check_tensors(layout, state)
    if grid == layout.grid:
        return layout, dict(state)
    table = resample_abs_pos_embed(
        state["pos_embed"],
        new_size=[grid, grid],
        old_size=[layout.grid, layout.grid],
        num_prefix_tokens=int(layout.class_position),
    )
    return layout.on_grid(grid), {**state, "pos_embed": table}


def has_fixed_positions(table: Tensor) -> bool:
    """True for the sine and cosine table that MAE stores with its weights, and nobody learns.

    He et al. 2022 (MAE), appendix A.1; the class token's row is zero.
    """
    _, rows, width = table.shape
    side = math.isqrt(rows - 1)
    if width % 4 or side * side != rows - 1:
        return False
    expected = torch.cat((torch.zeros(1, width), sincos_positions(side, width)))
    return torch.allclose(table[0].float(), expected, rtol=0, atol=_SINCOS_TOLERANCE)
