"""First values of all weights, from a passed generator.

One rule for supernets, decoders, projectors and fresh heads, in the manner of MAE (He et al. 2022, appendix A.1):
Xavier uniform for every linear map, the patch projection counting as a linear map of a flattened patch; zero for
biases, one for the gains of LayerNorm, 0.1 for those of layer scale (CaiT, Touvron et al. 2021, section 3, for networks
of at most 18 blocks), truncated normal with standard deviation 0.02 for the class, distillation and mask tokens and (as
in AutoFormer) for the tables of relative position.

Positions are learned here (a fixed table cannot be sliced), and start as loud as MAE's fixed sine-cosine table, whose
entries have a root mean square of 1 / sqrt(2).  The usual 0.02 would be drowned by patch tokens of about that size: on
8-pixel digits a small network then needs three times the epochs, because it has to learn where its patches are first.

A fresh head starts small, so that the first steps of fine-tuning do not tear at features that are already good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from models.architecture import REL_POS_TABLES, Architecture
from models.slicing import parameter_shapes

TOKEN_STD = 0.02
HEAD_STD = 0.02
POSITION_STD = math.sqrt(0.5)

LAYER_SCALE = 0.1

_POSITIONS = "pos_embed"
_HEADS = ("head.weight", "head_dist.weight")
_LAYER_SCALES = ("ls1.gamma", "ls2.gamma")


def initial_state(arch: Architecture, generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh weights of ``arch`` under timm's names, float32 on the generator's device."""
    state = {name: torch.empty(shape, device=generator.device) for name, shape in parameter_shapes(arch).items()}
    initialise_(state.items(), generator)
    return state


@torch.no_grad()
def initialise_(named_tensors: Iterable[tuple[str, Tensor]], generator: torch.Generator) -> None:
    """Fill tensors in place, drawing in their order; what a tensor is shows in its name and its number of axes."""
    for name, tensor in named_tensors:
        if name.endswith(_LAYER_SCALES):
            tensor.fill_(LAYER_SCALE)
        elif tensor.ndim == 1:
            tensor.fill_(0.0 if name.endswith("bias") else 1.0)
        elif name == _POSITIONS:
            nn.init.normal_(tensor, std=POSITION_STD, generator=generator)
        elif name in _HEADS:
            nn.init.trunc_normal_(tensor, std=HEAD_STD, generator=generator)
        elif tensor.ndim == 3 or name.endswith(REL_POS_TABLES):
            nn.init.trunc_normal_(tensor, std=TOKEN_STD, generator=generator)
        else:
            nn.init.xavier_uniform_(tensor.flatten(1), generator=generator)


def materialise(module: nn.Module, generator: torch.Generator) -> None:
    """Give a module that was built on the meta device real, freshly initialised parameters.

    Building there keeps the constructors of torch and timm from drawing out of the global random state.
    """
    module.to_empty(device=generator.device)
    initialise_(module.named_parameters(), generator)
