"""What network a file holds, read from the names and shapes of its tensors; never from the name of the file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from models.architecture import Architecture, ArchitectureError, Pool
from models.foreign.layout import Activation, Shape, VitLayout
from models.foreign.tensors import Entries, Entry
from models.foreign.transforms import PATCH_EMBEDDING, Findings, is_square, run_transforms

KNOWN_HEADS: Mapping[tuple[int, int], int] = {
    (192, 12): 3,
    (384, 12): 6,
    (768, 12): 12,
    (1024, 24): 16,
    (1280, 32): 16,
    (1408, 40): 16,
    (1536, 40): 24,
    (1664, 48): 16,
}
"""Heads of the published ViT sizes by (width, depth), which shapes do not tell: tiny, small, base, large, huge, giant
(timm's and DINOv2's), gigantic (Dosovitskiy et al. 2021; Touvron et al. 2021; Zhai et al. 2022; Oquab et al. 2023)."""

DEFAULT_EPS = 1e-6
"""LayerNorm epsilon of MAE, DeiT, DINOv2 and most of timm's Vision Transformers."""

MOST_NAMES = 5000
"""A ViT of 128 blocks with every option has fewer tensors; a file made to fill somebody's disk may have more."""

_LONGEST_NAME = 200
_BLOCK = re.compile(r"blocks\.(\d{1,4})\.(.*)")
_MATRIX, _IMAGE_KERNEL = 2, 4  # dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What shapes do not tell, as far as somebody knows it."""

    num_heads: int | None = None
    norm_eps: float | None = None
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class Misshapen:
    """A tensor with another shape than the rest of the file asks for."""

    name: str
    found: Shape
    expected: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFaults:
    """Everything that keeps a file from being a network."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[Misshapen, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    def to_json(self) -> dict[str, Any]:
        """Every name, as part of an error; of a file with absurdly many the first :data:`MOST_NAMES` of each list."""
        return {
            "missing": [_short(name) for name in self.missing[:MOST_NAMES]],
            "unexpected": [_short(name) for name in self.unexpected[:MOST_NAMES]],
            "misshapen": [
                {"name": _short(m.name), "found": list(m.found), "expected": list(m.expected)}
                for m in self.misshapen[:MOST_NAMES]
            ],
            "counts": {
                "missing": len(self.missing),
                "unexpected": len(self.unexpected),
                "misshapen": len(self.misshapen),
            },
        }

    def __str__(self) -> str:
        parts = []
        if self.missing:
            parts.append(f"missing: {_listed(self.missing)}")
        if self.unexpected:
            parts.append(f"unexpected: {_listed(self.unexpected)}")
        if self.misshapen:
            wrong = [f"{m.name} is {m.found}, expected {m.expected}" for m in self.misshapen]
            parts.append(f"misshapen: {_listed(wrong)}")
        return "; ".join(parts)


class NotRecognised(ValueError):
    """The tensors are no Vision Transformer that can be built; ``faults`` lists every key at fault."""

    def __init__(self, why: str, faults: KeyFaults | None = None) -> None:
        super().__init__(why)
        self.faults = faults or KeyFaults()


class HeadsUnknown(NotRecognised):
    """The number of attention heads follows from no shape, and the size is none of the published ones."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """A file that was understood.

    Attributes:
        layout: of the network.
        entries: where each of its tensors comes from, by timm's names.
        findings: what was seen and dropped on the way.
    """

    layout: VitLayout
    entries: Entries
    findings: Findings


def recognise(shapes: Mapping[str, Shape], hints: Hints | None = None) -> Recognised:
    """Understand the tensors of a file.

    Args:
        shapes: of every tensor, by the names of the file.
        hints: what is known beside the shapes.

    Raises:
        NotRecognised: keys are missing, unexpected or misshapen, all of which are listed; or the network is of another
            kind than the class can express.
    """
    hints = hints or Hints()
    entries, findings = run_transforms({name: Entry.of(name, tuple(shape)) for name, shape in shapes.items()})
    found = {name: entry.shape for name, entry in entries.items()}
    layout = _layout(found, hints)
    faults = compare(found, layout.parameter_shapes())
    if faults:
        raise NotRecognised(f"The tensors are not those of {describe(layout)}: {faults}.", faults)
    if layout.pre_norm and hints.activation is None:
        findings.notes.append(
            "The network has a norm before its first block, as CLIP's. OpenAI's CLIP uses quick_gelu, which no key "
            "tells: if this is one, register it again with source.activation quick_gelu."
        )
    return Recognised(layout, entries, findings)


def compare(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> KeyFaults:
    """Every name that is missing, unexpected or misshapen."""
    return KeyFaults(
        missing=tuple(name for name in expected if name not in found),
        unexpected=tuple(name for name in found if name not in expected),
        misshapen=tuple(
            Misshapen(name, found[name], shape)
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    )


def describe(layout: VitLayout) -> str:
    """A network in a few words."""
    arch = layout.arch
    return (
        f"a ViT of width {arch.embed_dim}, depth {arch.depth}, {arch.num_heads[0]} heads, patch {arch.patch_size}, "
        f"{layout.grid}x{layout.grid} positions"
    )


def _layout(found: Mapping[str, Shape], hints: Hints) -> VitLayout:
    """The layout that most of the tensors speak for. What contradicts it is found by comparing."""
    width, channels, patch, _ = patch_kernel(found)
    blocks = block_names(found)
    depth = 1 + max(blocks)
    rows, hidden, read = _token_rows(found), *mlp_widths(found, depth)
    registers = found["reg_token"][1] if len(found.get("reg_token", ())) == 3 else 0
    is_gated = hidden == 2 * read
    heads = hints.num_heads or KNOWN_HEADS.get((width, depth))
    if heads is None or width % heads:
        raise _heads_error(width, depth, heads)
    names = {rest for block in blocks.values() for rest in block}
    try:
        arch = Architecture(
            embed_dim=width,
            depth=depth,
            num_heads=(heads,) * depth,
            mlp_ratio=(exact_ratio(hidden, width),) * depth,
            head_dim=width // heads,
            img_size=patch * math.isqrt(rows),
            patch_size=patch,
            in_chans=channels,
            num_classes=0,
            pool=Pool.TOKEN,
            norm_eps=hints.norm_eps or DEFAULT_EPS,
        )
    except ArchitectureError as error:
        raise NotRecognised(f"The tensors describe a network that cannot be built here: {error}.") from error
    return VitLayout(
        arch=arch,
        class_position=not registers and not is_square(rows),
        registers=registers,
        layer_scale="ls1.gamma" in names or "ls2.gamma" in names,
        pre_norm="norm_pre.weight" in found,
        final_norm="norm.weight" in found,
        qkv_bias="attn.qkv.bias" in names,
        qk_norm="attn.q_norm.weight" in names or "attn.k_norm.weight" in names,
        activation=Activation.SWIGLU if is_gated else hints.activation or Activation.GELU,
    )


def patch_kernel(found: Mapping[str, Shape]) -> tuple[int, int, int, int]:
    """Shape of the patch embedding: width, channels and the sides of a patch, which are equal.

    Raises:
        NotRecognised: there is none, or it has another shape.
    """
    kernel = found.get(PATCH_EMBEDDING)
    if kernel is None:
        raise NotRecognised(
            f"The file has no {PATCH_EMBEDDING}, so it holds no Vision Transformer under a known prefix.",
            KeyFaults(missing=(PATCH_EMBEDDING,), unexpected=tuple(found)),
        )
    if len(kernel) != _IMAGE_KERNEL or kernel[2] != kernel[3] or 0 in kernel:
        expected = (kernel[0] if kernel else 0, 3, 16, 16)
        raise NotRecognised(
            f"{PATCH_EMBEDDING} has shape {kernel}; expected are (width, channels, patch, patch) with square patches.",
            KeyFaults(misshapen=(Misshapen(PATCH_EMBEDDING, kernel, expected),)),
        )
    return kernel[0], kernel[1], kernel[2], kernel[3]


def _token_rows(found: Mapping[str, Shape]) -> int:
    """Rows of the position table: patches, and perhaps one for the class token."""
    missing = tuple(name for name in ("cls_token", "pos_embed") if name not in found)
    if missing:
        raise NotRecognised(
            f"A teacher needs a class token and learned positions; missing: {_listed(missing)}.",
            KeyFaults(missing=missing),
        )
    shape = found["pos_embed"]
    rows = shape[1] if len(shape) == 3 else 0
    if not is_square(rows) and not is_square(rows - 1):
        raise NotRecognised(
            f"pos_embed has shape {shape}: its {rows} rows are no square grid, with or without a class token. "
            "Networks for square images are allowed.",
            KeyFaults(misshapen=(Misshapen("pos_embed", shape, (1, 197, shape[-1] if shape else 0)),)),
        )
    return rows


def mlp_widths(found: Mapping[str, Shape], depth: int) -> tuple[int, int]:
    """Hidden width that the first layer gives and that the second one reads, from the first block that has both.

    Raises:
        NotRecognised: no block has.
    """
    for i in range(depth):
        first, second = (found.get(f"blocks.{i}.mlp.{layer}.weight", ()) for layer in ("fc1", "fc2"))
        if len(first) == len(second) == _MATRIX:
            return first[0], second[1]
    names = tuple(f"blocks.0.mlp.{layer}.weight" for layer in ("fc1", "fc2"))
    raise NotRecognised(f"No block has an MLP; missing: {_listed(names)}.", KeyFaults(missing=names))


def block_names(found: Mapping[str, Shape]) -> dict[int, list[str]]:
    """Names of the tensors of each block, after ``blocks.N.``.

    Raises:
        NotRecognised: there are no blocks.
    """
    blocks: dict[int, list[str]] = {}
    for name in found:
        if match := _BLOCK.fullmatch(name):
            blocks.setdefault(int(match[1]), []).append(match[2])
    if not blocks:
        raise NotRecognised(
            "The file has no transformer blocks (blocks.0.norm1.weight and so on).",
            KeyFaults(missing=("blocks.0.norm1.weight",), unexpected=tuple(found)),
        )
    return blocks


def exact_ratio(hidden: int, width: int) -> float:
    """An MLP ratio that gives back exactly this hidden width, which is truncated from the product."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _heads_error(width: int, depth: int, heads: int | None) -> HeadsUnknown:
    if heads is None:
        return HeadsUnknown(
            f"The number of attention heads does not follow from the shapes, and width {width} with depth {depth} is "
            "none of the published sizes: state source.num_heads."
        )
    return HeadsUnknown(f"{heads} heads do not divide the width {width}: state another source.num_heads.")


def _listed(names: Iterable[str], most: int = 8) -> str:
    """Some of the names; all of them are in the error's lists."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(_short, names[:most])) + more


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
