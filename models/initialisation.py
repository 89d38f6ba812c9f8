"""First values of all weights, from a passed generator.

One rule for supernets, decoders, projectors and fresh heads, AutoFormer's (section 4.1 of its code's recipe, as in
DeiT): truncated normal with standard deviation 0.02 for matrices, tokens and position tables, zero for biases, one
for the gains of LayerNorm.  The patch projection is a linear map of each patch and is treated as one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.architecture import Architecture
from models.slicing import parameter_shapes

INIT_STD = 0.02


def initial_state(arch: Architecture, generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh weights of ``arch`` under timm's names, float32 on the generator's device.

    Raises:
        SlicingError: when the architecture has relative position.
    """
    state = {name: torch.empty(shape, device=generator.device) for name, shape in parameter_shapes(arch).items()}
    initialise_(state.items(), generator)
    return state


@torch.no_grad()
def initialise_(named_tensors: Iterable[tuple[str, Tensor]], generator: torch.Generator) -> None:
    """Fill tensors in place, drawing in their order; vectors are told apart by their name's end."""
    for name, tensor in named_tensors:
        if tensor.ndim > 1:
            nn.init.trunc_normal_(tensor, std=INIT_STD, generator=generator)
        elif name.endswith("bias"):
            tensor.zero_()
        else:
            tensor.fill_(1.0)


def materialise(module: nn.Module, generator: torch.Generator) -> None:
    """Give a module that was built on the meta device real, freshly initialised parameters.

    Building there keeps the constructors of torch and timm from drawing out of the global random state.
    """
    module.to_empty(device=generator.device)
    initialise_(module.named_parameters(), generator)
