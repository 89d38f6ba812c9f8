"""From a slice of the supernet to a network of its own: timm's ``VisionTransformer``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from models.architecture import Architecture
from models.initialisation import initialise_
from models.slicing import LEADING, Cut, parameter_shapes, slice_table
from models.supernet import apply_slices
from models.templates import model


class StateError(ValueError):
    """Weights do not belong to the network they are meant for; the message names the tensors at fault."""


_HEADS = ("head.", "head_dist.")


def extract_state(
    supernet_state: Mapping[str, Tensor], largest: Architecture, arch: Architecture, cut: Cut = LEADING
) -> dict[str, Tensor]:
    """The weights of one subnet, as copies that share nothing with the supernet.

    A network of its own scales attention by its own width of a head. Where the cut scales by the supernet's, the
    difference goes into the projection to queries, so that the network answers as the subnet does.

    Args:
        supernet_state: ``Supernet.state_dict()``, or any weights of ``largest`` under timm's names.
        largest: the architecture that the supernet was allocated for.
        arch: the subnet; with ``num_classes`` 0 its backbone.
        cut: which entries it keeps, and how its attention is scaled.

    Returns:
        Contiguous tensors under timm's names, ready for :func:`build_timm`.

    Raises:
        SlicingError: when ``arch`` is not nested in ``largest``.
        StateError: when tensors are missing, unknown or of the wrong shape.
    """
    table = slice_table(largest, arch, cut)
    check_state(supernet_state, largest)
    state = {
        name: apply_slices(supernet_state[name].detach(), slices).clone(memory_format=torch.contiguous_format)
        for name, slices in table.items()
    }
    if cut.full_scale:
        for i, rows in enumerate(arch.qkv_dims):
            for kind in ("weight", "bias"):
                state[f"blocks.{i}.attn.qkv.{kind}"][:rows] *= cut.query_factor(largest, arch)
    return state


def check_state(state: Mapping[str, Tensor], arch: Architecture) -> None:
    """Refuse weights that are not exactly those of ``arch``: an ignored tensor would change the network silently.

    Raises:
        StateError: names missing, unexpected and misshapen tensors.
    """
    expected = parameter_shapes(arch)
    faults = [f"{name} is missing" for name in expected if name not in state]
    faults += [f"{name} is unexpected" for name in state if name not in expected]
    faults += [
        f"{name} has shape {tuple(state[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    if faults:
        raise StateError("; ".join(faults))


def build_timm(arch: Architecture, generator: torch.Generator | None = None) -> VisionTransformer:
    """timm's ``VisionTransformer`` of this architecture: final norm before pooling, heads and ratios per block.

    Args:
        arch: any architecture; with relative position its attentions are ``models.templates.model.RelativeAttention``,
            with a distillation token it is timm's ``VisionTransformerDistilled``, whose logits are the mean of two
            heads in training too.
        generator: source of fresh weights, which live on its device.  Without one all weights are NaN, so that a
            network whose weights were never loaded cannot pass for one.
    """
    # Built without storage, since timm's constructor would draw from the global random state.
    network = model.build(arch.to_json(), device="meta")
    network.to_empty(device=generator.device if generator else "cpu")
    if generator:
        initialise_(network.named_parameters(), generator)
    else:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(torch.nan)
    return network


def load_backbone(network: VisionTransformer, state: Mapping[str, Tensor]) -> None:
    """Load everything but the heads, which keep their weights: the start of fine-tuning on other classes.

    Raises:
        StateError: when ``state`` lacks a backbone tensor or holds one that the network has not.
    """
    backbone = {name: tensor for name, tensor in state.items() if not name.startswith(_HEADS)}
    expected = {name: tuple(p.shape) for name, p in network.named_parameters() if not name.startswith(_HEADS)}
    found = {name: tuple(tensor.shape) for name, tensor in backbone.items()}
    if found != expected:
        faults = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise StateError(f"tensors missing, unexpected or misshapen: {', '.join(faults)}")
    network.load_state_dict(backbone, strict=False)
