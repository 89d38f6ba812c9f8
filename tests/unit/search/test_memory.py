from dataclasses import replace

import numpy as np
import pytest
import torch

from models.architecture import Architecture
from models.extract import build_timm
from search.cost import weight_bytes
from search.memory import live_bytes, peak_bytes
from search.presets import PresetName, resolve
from tests.unit.search.live_tensors import peak_of_forward
from tests.unit.search.spaces import small_space

BASE = Architecture(
    embed_dim=48,
    depth=2,
    num_heads=(2, 3),
    mlp_ratio=(2.0, 3.0),
    head_dim=16,
    img_size=32,
    patch_size=8,
    num_classes=10,
)
CASES = {
    "mlp": BASE,
    "attention": replace(BASE, num_heads=(2, 6)),
    "thin mlp": replace(BASE, mlp_ratio=(0.25, 0.5), num_heads=(1, 1)),
    "many small heads": replace(BASE, embed_dim=8, num_heads=(3, 12), head_dim=1, mlp_ratio=(1.0, 1.0)),
    "embedding": replace(BASE, embed_dim=96, num_heads=(1, 1), head_dim=2, mlp_ratio=(0.02, 0.02)),
    "head": replace(BASE, num_classes=50_000),
    "head of the class token": replace(BASE, num_classes=50_000, pool="token"),
    "no head": replace(BASE, num_classes=0),
    "grey": replace(BASE, in_chans=1, img_size=64),
    "distilled": replace(BASE, distilled=True, pool="token", layer_scale=True),
    "two heads": replace(BASE, distilled=True, pool="token", num_classes=50_000),
    "relative, kernel": replace(BASE, rel_pos=True),
    "relative, one head": replace(
        BASE, rel_pos=True, num_heads=(1, 1), head_dim=2, embed_dim=400, mlp_ratio=(0.1, 0.1)
    ),
    "relative, projection": replace(
        BASE, rel_pos=True, num_heads=(2, 2), head_dim=1, embed_dim=900, mlp_ratio=(0.1, 0.1)
    ),
    "relative, sums by entry": replace(BASE, rel_pos=True, num_heads=(6, 6), head_dim=4, img_size=16),
    "relative, values": replace(BASE, rel_pos=True, num_heads=(6, 6), head_dim=33, img_size=16, mlp_ratio=(1.0, 1.0)),
}


def measured(arch: Architecture) -> int:
    network = build_timm(arch, torch.Generator().manual_seed(0)).eval()
    return peak_of_forward(network, torch.zeros(1, arch.in_chans, arch.img_size, arch.img_size))


@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_built_network_to_the_byte(name: str) -> None:
    arch = CASES[name]
    # Logits of the class token alone take no pooled vector, which the formula grants them.
    slack = 4 * arch.embed_dim if name == "head of the class token" else 0
    assert peak_bytes(arch) - measured(arch) == slack


@pytest.mark.parametrize("preset", [PresetName.MICRO, PresetName.MASKTAS_TINY])
def test_the_peak_of_a_random_member_is_that_of_the_built_network(preset: PresetName) -> None:
    arch = resolve(preset).sample(np.random.default_rng(0), 10)
    assert peak_bytes(arch) == measured(arch)


def test_a_first_block_larger_than_all_others_costs_the_embedded_image_at_most() -> None:
    arch = replace(BASE, mlp_ratio=(4.0, 1.0))
    assert 0 < peak_bytes(arch) - measured(arch) <= 4 * (arch.num_patches + 1) * arch.embed_dim


def test_the_peak_depends_on_blocks_only_by_their_weights_and_the_largest() -> None:
    for arch in small_space().members(3):
        largest = replace(
            arch, num_heads=(max(arch.num_heads),) * arch.depth, mlp_ratio=(max(arch.mlp_ratio),) * arch.depth
        )
        assert live_bytes(arch) == live_bytes(largest)
        assert peak_bytes(arch) == weight_bytes(arch) + live_bytes(largest)
