"""Published weights as the start of a slimmable network of the same size.

The sliced forward of the whole network then gives the features that the published network gives.  Subnets are no use
at first: nobody trained their slices together (Scala, table 8).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.architecture import Architecture
from models.extract import check_state
from models.foreign.layout import VitLayout
from models.foreign.start import start_problems
from models.initialisation import initial_state
from models.slimmable import SlimmableError
from models.teacher_weights import on_grid

_HEADS = ("head", "head_dist")


def slimmable_start(
    layout: VitLayout, tensors: Mapping[str, Tensor], largest: Architecture, generator: torch.Generator
) -> dict[str, Tensor]:
    """Start weights of a slimmable network.

    Positions are resampled to its grid.  What the published network lacks takes the value that changes nothing: no
    bias, no position of a token; a final norm is fresh.  A distillation token is the published register token if there
    is one, else it starts as a copy of the class token.  Heads are the published ones where they have as many classes,
    else fresh.

    Args:
        layout: of the published weights.
        tensors: exactly those of the layout, and those of its heads (``head.weight``, ...) where it has any.
        largest: the whole slimmable network.
        generator: source of what is fresh.

    Returns:
        Float32 weights of ``largest`` under timm's names, on the generator's device.

    Raises:
        SlimmableError: the layout is not that of such a network; names every field at fault.
        StateError: the tensors are not those of the layout.
    """
    problems = tuple(start_problems(layout, largest))
    if problems:
        raise SlimmableError(*problems)
    body = {name: tensor for name, tensor in tensors.items() if name.partition(".")[0] not in _HEADS}
    placed, body = on_grid(layout, body, largest.grid_size)
    state = initial_state(largest, generator)
    given = {**_tokens(placed, body, largest), **_biases(placed, largest)}
    given |= {name: tensor for name, tensor in body.items() if name in state and name not in given}
    given |= _heads(tensors, largest)
    state |= {name: tensor.detach().to(generator.device, torch.float32).clone() for name, tensor in given.items()}
    check_state(state, largest)
    return state


def _tokens(layout: VitLayout, body: Mapping[str, Tensor], largest: Architecture) -> dict[str, Tensor]:
    """The tokens before those of the patches, and the table of positions with a row for each of them."""
    table = body["pos_embed"]
    rows = int(layout.class_position)
    nowhere = torch.zeros_like(table[:, :1])
    positions = [table[:, :1] if layout.class_position else nowhere]
    tokens = {"cls_token": body["cls_token"]}
    if largest.distilled:
        tokens["dist_token"] = body["reg_token"] if layout.registers else body["cls_token"]
        positions.append(nowhere if layout.registers else positions[0])
    return {**tokens, "pos_embed": torch.cat((*positions, table[:, rows:]), dim=1)}


def _biases(layout: VitLayout, largest: Architecture) -> dict[str, Tensor]:
    if layout.qkv_bias:
        return {}
    return {f"blocks.{i}.attn.qkv.bias": torch.zeros(3 * width) for i, width in enumerate(largest.qkv_dims)}


def _heads(tensors: Mapping[str, Tensor], largest: Architecture) -> dict[str, Tensor]:
    """Published heads that have the classes of the network."""
    expected = (largest.num_classes, largest.embed_dim)
    found: dict[str, Tensor] = {}
    for head in _HEADS[: 2 if largest.distilled else 1]:
        weight, bias = (tensors.get(f"{head}.{kind}") for kind in ("weight", "bias"))
        if weight is not None and bias is not None and largest.num_classes and tuple(weight.shape) == expected:
            found |= {f"{head}.weight": weight, f"{head}.bias": bias}
    return found
