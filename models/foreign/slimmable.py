"""Checkpoints of Scala's released training code, understood from names, shapes and the arguments of their training.

Tensors have the names of timm's (distilled) DeiT; what a name or a shape cannot tell, the released code fixes: queries,
keys and values are one flat run of rows, all widths but the smallest and the whole are cut from the trailing entries,
attention is scaled by the whole network's width of a head, and norms of subnets use torch's default epsilon whatever
they were built with (Zhang et al. 2024, Scala; released code, ``models_scala.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.architecture import Architecture, ArchitectureError, FieldProblem, Pool, is_int
from models.foreign.layout import Shape
from models.foreign.recognition import (
    HeadsUnknown,
    KeyFaults,
    Misshapen,
    NotRecognised,
    block_names,
    compare,
    exact_ratio,
    mlp_widths,
    patch_kernel,
)
from models.foreign.tensors import Entries, Entry
from models.foreign.transforms import Findings, is_square, strip_wrappers
from models.slicing import QkvSlicing, parameter_shapes
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable, SlimmableError, grid

NORM_EPS = 1e-5
"""Epsilon of the norms: the default of torch's functional form, which the released code calls without one."""

_HEAD_DIM = 64
"""Channels of a head in the released networks, of which only the smallest DeiT has fewer."""

_HEADS_OF_MODELS = {"deit_so_tiny": 3}

_DISTILLED_SMALLEST = 0.25
"""The smallest width of distilled networks. Their code has this number where it chooses the end that tokens, positions,
final norm and heads are cut from, but reads the argument for the blocks: with another smallest width the two disagree,
and no cut of ours is that network."""

_STEPS = ("granularity", "discrete_ratio")
"""Names of the step from width to width; the second one is that of an earlier version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What somebody knows of a checkpoint beside its tensors; None where they leave it to the file.

    Attributes:
        smallest: the smallest trained width as a share of the whole.
        step: from one trained width to the next, as a share.
        num_heads: of each block.
    """

    smallest: float | None = None
    step: float | None = None
    num_heads: int | None = None


@dataclass(frozen=True, slots=True)
class RecognisedSlimmable:
    """A checkpoint that was understood.

    Attributes:
        net: the network and its trained widths.
        entries: where each tensor comes from, by timm's names.
        findings: what was seen and dropped on the way.
    """

    net: Slimmable
    entries: Entries
    findings: Findings


def recognise_slimmable(
    shapes: Mapping[str, Shape], arguments: Mapping[str, object], stated: Stated | None = None
) -> RecognisedSlimmable:
    """Understand the tensors of a released checkpoint.

    Args:
        shapes: of every tensor, by the names of the file.
        arguments: of its training, by the names of the released code's command line; empty when the file has none.
        stated: what is known beside the file. What the file says too must agree.

    Raises:
        NotRecognised: keys are missing, unexpected or misshapen, all of which are listed, or heads are unknown.
        SlimmableError: the trained widths are unknown, contradictory or not those of any slimmable network here;
            pointers ``/smallest``, ``/step`` and ``/num_heads``.
    """
    stated = stated or Stated()
    findings = Findings()
    entries = strip_wrappers({name: Entry.of(name, tuple(shape)) for name, shape in shapes.items()}, findings)
    found = {name: entry.shape for name, entry in entries.items()}
    largest = _whole_network(found, arguments, stated)
    if faults := compare(found, parameter_shapes(largest)):
        raise NotRecognised(f"The tensors are not those of {_describe(largest)}: {faults}.", faults)
    smallest, step = _widths(arguments, stated, distilled=largest.distilled)
    net = Slimmable(
        largest=largest,
        head_dims=grid(largest.head_dim, smallest, step),
        qkv=QkvSlicing.CONTIGUOUS,
        isolated=IsolatedActivation.OFFICIAL,
        attention_scale=AttentionScale.FULL,
    )
    _check_hidden_widths(net, found["blocks.0.mlp.fc1.bias"][0])
    return RecognisedSlimmable(net, entries, findings)


def _whole_network(found: Mapping[str, Shape], arguments: Mapping[str, object], stated: Stated) -> Architecture:
    """The network that most of the tensors speak for. What contradicts it is found by comparing."""
    width, channels, patch, _ = patch_kernel(found)
    depth = 1 + max(block_names(found))
    hidden, _ = mlp_widths(found, depth)
    heads = _heads(width, arguments, stated)
    distilled = "dist_token" in found
    try:
        return Architecture(
            embed_dim=width,
            depth=depth,
            num_heads=(heads,) * depth,
            mlp_ratio=(exact_ratio(hidden, width),) * depth,
            head_dim=width // heads,
            img_size=patch * _grid_side(found, 2 if distilled else 1),
            patch_size=patch,
            in_chans=channels,
            num_classes=_classes(found),
            pool=Pool.TOKEN,
            norm_eps=NORM_EPS,
            distilled=distilled,
        )
    except ArchitectureError as error:
        raise NotRecognised(f"The tensors describe a network that cannot be built here: {error}.") from error


def _grid_side(found: Mapping[str, Shape], prefix: int) -> int:
    shape = found.get("pos_embed")
    if shape is None:
        raise NotRecognised("The file has no pos_embed.", KeyFaults(missing=("pos_embed",)))
    patches = (shape[1] if len(shape) == 3 else 0) - prefix
    if not is_square(patches):
        raise NotRecognised(
            f"pos_embed has shape {shape}: its rows are no square grid after {prefix} tokens before the patches.",
            KeyFaults(misshapen=(Misshapen("pos_embed", shape, (1, 196 + prefix, shape[-1] if shape else 0)),)),
        )
    return math.isqrt(patches)


def _classes(found: Mapping[str, Shape]) -> int:
    bias = found.get("head.bias")
    if bias is None:
        raise NotRecognised("The file has no head (head.weight, head.bias).", KeyFaults(missing=("head.bias",)))
    if len(bias) != 1:
        raise NotRecognised(
            f"head.bias has shape {bias}, expected is one number for each class.",
            KeyFaults(misshapen=(Misshapen("head.bias", bias, (1000,)),)),
        )
    return bias[0]


def _heads(width: int, arguments: Mapping[str, object], stated: Stated) -> int:
    """What is stated, else what the arguments say, else as many heads of the usual width as there are."""
    known = stated.num_heads if stated.num_heads is not None else _argued_heads(arguments)
    if known is None:
        if width % _HEAD_DIM:
            raise HeadsUnknown(
                f"The number of heads follows from no shape, and width {width} is no multiple of {_HEAD_DIM}, the "
                "usual width of a head: state num_heads."
            )
        return width // _HEAD_DIM
    if known < 1 or width % known:
        raise HeadsUnknown(f"{known} heads do not divide the width {width}: state another num_heads.")
    return known


def _argued_heads(arguments: Mapping[str, object]) -> int | None:
    heads, model = arguments.get("num_heads"), arguments.get("model")
    if isinstance(heads, int) and is_int(heads):
        return heads
    names = (name for name in _HEADS_OF_MODELS if isinstance(model, str) and model.startswith(f"{name}_"))
    return next((_HEADS_OF_MODELS[name] for name in names), None)


def _widths(arguments: Mapping[str, object], stated: Stated, *, distilled: bool) -> tuple[float, float]:
    """Smallest width and step, each of the file or stated; of both when they agree."""
    problems: list[FieldProblem] = []
    smallest = _share("smallest", stated.smallest, arguments, ("smallest_ratio",), problems)
    step = _share("step", stated.step, arguments, _STEPS, problems)
    largest = arguments.get("largest_ratio", 1.0)
    if largest != 1:
        problems.append(FieldProblem("/largest_ratio", largest, "1: a network that is used whole"))
    if distilled and smallest is not None and smallest != _DISTILLED_SMALLEST:
        allowed = (
            f"{_DISTILLED_SMALLEST} for networks with a distillation token: with any other, the released code cuts "
            "the tokens of the smallest width from another end than its blocks"
        )
        problems.append(FieldProblem("/smallest", smallest, allowed))
    if problems or smallest is None or step is None:
        raise SlimmableError(*problems)
    return smallest, step


def _share(
    field: str,
    stated: float | None,
    arguments: Mapping[str, object],
    names: Iterable[str],
    problems: list[FieldProblem],
) -> float | None:
    """A share of the whole width from the first argument that is there, else as stated; problems are added."""
    pointer = f"/{field}"
    told = next(((name, arguments[name]) for name in names if name in arguments), None)
    if told is None and stated is None:
        problems.append(FieldProblem(pointer, None, "a share of the whole width; the file does not tell, so state it"))
        return None
    value = stated if told is None else told[1]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        where = "" if told is None else f" (the file's {told[0]})"
        problems.append(FieldProblem(pointer, value, f"a number above 0, at most 1{where}"))
        return None
    if told is not None and stated is not None and not math.isclose(stated, value):
        problems.append(FieldProblem(pointer, stated, f"{value:g}, as the file says ({told[0]}); leave it out"))
        return None
    return float(value)


def _check_hidden_widths(net: Slimmable, hidden: int) -> None:
    """Subnets truncate hidden widths from their own width here, from the whole hidden width in the released code."""
    try:
        net.architecture(net.smallest)
    except ArchitectureError as error:
        allowed = f"a width at which MLPs keep a channel of the {hidden} that the whole network has"
        raise SlimmableError(FieldProblem("/smallest", net.ratio(net.smallest), allowed)) from error
    unlike = [dim for dim in net.served if net.architecture(dim).mlp_dims[0] != int(net.ratio(dim) * hidden)]
    if unlike:
        raise NotRecognised(
            f"MLPs {hidden} wide are no fixed multiple of the width {net.largest.embed_dim}: subnets with heads of "
            f"{', '.join(map(str, unlike[:8]))} channels would have other hidden widths than in the released code."
        )


def _describe(arch: Architecture) -> str:
    kind = "a distilled ViT" if arch.distilled else "a ViT"
    return (
        f"{kind} of width {arch.embed_dim}, depth {arch.depth}, {arch.num_heads[0]} heads, patch {arch.patch_size}, "
        f"{arch.grid_size}x{arch.grid_size} positions and {arch.num_classes} classes"
    )
