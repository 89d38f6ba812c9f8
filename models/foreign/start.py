"""Whether published weights can be where a slimmable network starts from."""

from __future__ import annotations

from collections.abc import Iterator

from models.architecture import Architecture, FieldProblem
from models.foreign.layout import Activation, VitLayout


def start_problems(layout: VitLayout, largest: Architecture | None = None) -> Iterator[FieldProblem]:
    """What keeps weights from being those of a slimmable network.

    Its image may have another number of patches and its head other classes; a missing final norm, a missing bias of
    queries, keys and values and a missing position of the class token are no obstacle either.  A register token is
    none where the network has a distillation token, which is just that with a head of its own.

    Args:
        layout: of the weights.
        largest: the whole network; None asks whether there is any.

    Yields:
        A problem for each field of the layout at fault, and for each size of the network that the weights have not.
    """
    arch = layout.arch
    registers = 1 if largest is None or largest.distilled else 0
    if layout.registers > registers:
        allowed = f"{registers} register tokens; slimmable networks have none, at most a distillation token"
        yield FieldProblem("/registers", layout.registers, allowed)
    for name, value in (("pre_norm", False), ("qk_norm", False), ("activation", Activation.GELU)):
        if getattr(layout, name) != value:
            yield FieldProblem(f"/{name}", getattr(layout, name), f"{value}, as in slimmable networks")
    if arch.rel_pos:
        yield FieldProblem("/rel_pos", True, "False: weights of networks without relative position")
    if not arch.is_uniform:
        yield FieldProblem("/num_heads", list(arch.num_heads), "blocks that are alike, tokens as wide as their heads")
    if largest is not None:
        yield from _size_problems(layout, largest)


def _size_problems(layout: VitLayout, largest: Architecture) -> Iterator[FieldProblem]:
    arch = layout.arch
    sizes = ("embed_dim", "depth", "num_heads", "head_dim", "patch_size", "in_chans", "norm_eps", "rel_pos")
    pairs = {name: (getattr(arch, name), getattr(largest, name)) for name in sizes}
    pairs["mlp_ratio"] = (arch.mlp_dims, largest.mlp_dims)
    pairs["layer_scale"] = (layout.layer_scale, largest.layer_scale)
    for name, (found, expected) in pairs.items():
        if found != expected:
            yield FieldProblem(f"/{name}", found, f"{expected}, as in the slimmable network")
