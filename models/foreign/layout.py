"""What a Vision Transformer of timm's class can be beyond an architecture record, as published weights need it.

Pure Python: the HTTP service reads it from the shapes of a file before any job exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from models.architecture import Architecture

Shape = tuple[int, ...]


class Activation(StrEnum):
    """What the MLP of a block applies. No shape tells them apart, except for the gated one."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"  # OpenAI's CLIP
    SWIGLU = "swiglu"  # DINOv2 giant: the first layer holds gate and value, one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class VitLayout:
    """A headless Vision Transformer and the options of timm's ``VisionTransformer`` that it uses.

    Attributes:
        arch: the network, without a head; all blocks alike when any option below is set.
        class_position: the position table has a row for the class token, before those of the patches. Networks with
            registers have none: their prefix tokens carry their positions in themselves.
        registers: learned tokens between class token and patches (DINOv2 registers, DeiT's distillation token).
        layer_scale: each branch is scaled by a learned vector (``ls1.gamma``, ``ls2.gamma``).
        pre_norm: a norm before the first block and no bias in the patch embedding (CLIP).
        final_norm: a norm after the last block; features are taken before it.
        qkv_bias: the projection to queries, keys and values has a bias.
        qk_norm: queries and keys are normalised per head.
        activation: of the MLPs.
    """

    arch: Architecture
    class_position: bool = True
    registers: int = 0
    layer_scale: bool = False
    pre_norm: bool = False
    final_norm: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    activation: Activation = Activation.GELU

    @property
    def is_plain(self) -> bool:
        """True when the architecture record says everything."""
        return self == VitLayout(arch=self.arch)

    @property
    def grid(self) -> int:
        """Patches along one side of the image."""
        return self.arch.grid_size

    def on_grid(self, grid: int) -> VitLayout:
        """The same network for images of ``grid`` by ``grid`` patches."""
        return replace(self, arch=replace(self.arch, img_size=grid * self.arch.patch_size))

    def parameter_shapes(self) -> dict[str, Shape]:
        """Shape of every tensor under timm's names."""
        arch = self.arch
        width = arch.embed_dim
        rows = arch.num_patches + int(self.class_position)
        shapes: dict[str, Shape] = {"cls_token": (1, 1, width), "pos_embed": (1, rows, width)}
        if self.registers:
            shapes["reg_token"] = (1, self.registers, width)
        shapes["patch_embed.proj.weight"] = (width, arch.in_chans, arch.patch_size, arch.patch_size)
        if not self.pre_norm:
            shapes["patch_embed.proj.bias"] = (width,)
        for norm in ("norm_pre",) * self.pre_norm + ("norm",) * self.final_norm:
            shapes |= _norm(norm, width)
        for i in range(arch.depth):
            shapes |= self._block(f"blocks.{i}", i)
        return shapes

    def _block(self, block: str, i: int) -> dict[str, Shape]:
        width, heads_width, hidden = self.arch.embed_dim, self.arch.qkv_dims[i], self.arch.mlp_dims[i]
        read = hidden // 2 if self.activation is Activation.SWIGLU else hidden
        shapes = {
            **_norm(f"{block}.norm1", width),
            **_norm(f"{block}.norm2", width),
            **_linear(f"{block}.attn.qkv", 3 * heads_width, width),
            **_linear(f"{block}.attn.proj", width, heads_width),
            **_linear(f"{block}.mlp.fc1", hidden, width),
            **_linear(f"{block}.mlp.fc2", width, read),
        }
        if not self.qkv_bias:
            del shapes[f"{block}.attn.qkv.bias"]
        for norm in ("q_norm", "k_norm") * self.qk_norm:
            shapes |= _norm(f"{block}.attn.{norm}", self.arch.head_dim)
        for scale in ("ls1", "ls2") * self.layer_scale:
            shapes[f"{block}.{scale}.gamma"] = (width,)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """The options beside the architecture; :meth:`from_json` reads them back."""
        return {
            "class_position": self.class_position,
            "registers": self.registers,
            "layer_scale": self.layer_scale,
            "pre_norm": self.pre_norm,
            "final_norm": self.final_norm,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "activation": self.activation.value,
        }

    @classmethod
    def from_json(cls, architecture: Mapping[str, Any], options: Mapping[str, Any]) -> VitLayout:
        """The layout of an architecture JSON and the options of :meth:`to_json`; no options: a plain network.

        Raises:
            ArchitectureError: the architecture cannot be built.
            ValueError, TypeError: options of another version.
        """
        fields = dict(options)
        if "activation" in fields:
            fields["activation"] = Activation(fields["activation"])
        return cls(arch=Architecture.from_json(architecture), **fields)


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
