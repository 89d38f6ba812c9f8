from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.initialisation import HEAD_STD, POSITION_STD, TOKEN_STD, initial_state
from models.masked import sincos_positions
from tests.unit.models.toys import LARGEST

WIDE = replace(LARGEST, embed_dim=256, num_classes=100)


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return initial_state(WIDE, torch.Generator().manual_seed(0))


def test_linear_maps_are_xavier_uniform(state: dict[str, Tensor]) -> None:
    for name, weight in state.items():
        if weight.ndim in (2, 4) and name != "head.weight":
            bound = math.sqrt(6 / (weight.shape[0] + weight[0].numel()))
            assert weight.abs().max() <= bound, name
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name


def test_positions_are_as_loud_as_the_fixed_table(state: dict[str, Tensor]) -> None:
    fixed = sincos_positions(WIDE.grid_size, 256).square().mean().sqrt().item()
    assert pytest.approx(fixed) == POSITION_STD
    assert state["pos_embed"].square().mean().sqrt().item() == pytest.approx(fixed, rel=0.1)


def test_tokens_and_head_start_small(state: dict[str, Tensor]) -> None:
    assert state["cls_token"].std().item() == pytest.approx(TOKEN_STD, rel=0.2)
    assert state["head.weight"].std().item() == pytest.approx(HEAD_STD, rel=0.05)


def test_vectors_are_zero_or_one(state: dict[str, Tensor]) -> None:
    assert state["norm.weight"].eq(1).all()
    assert state["blocks.0.attn.qkv.bias"].eq(0).all()
