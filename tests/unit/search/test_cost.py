from __future__ import annotations

from dataclasses import replace

import pytest

from models.architecture import Architecture
from search.cost import Cost, cost, macs, params
from tests.unit.published import GOLDEN, Golden, plain_vit

golden = pytest.mark.parametrize("net", GOLDEN, ids=lambda net: net.name)

# Parameters of plain 12-block ViTs at the width ratios of Scala, (embed_dim, heads): ViT-S slices, then ViT-B slices.
PLAIN_PARAMS = {
    (96, 6): 1_532_104,
    (120, 6): 2_329_600,
    (144, 6): 3_292_984,
    (168, 6): 4_422_256,
    (192, 6): 5_717_416,
    (240, 6): 8_805_400,
    (288, 6): 12_556_936,
    (336, 6): 16_972_024,
    (384, 6): 22_050_664,
    (192, 12): 5_717_416,
    (240, 12): 8_805_400,
    (288, 12): 12_556_936,
    (336, 12): 16_972_024,
    (384, 12): 22_050_664,
    (480, 12): 34_198_600,
    (576, 12): 49_000_744,
    (672, 12): 66_457_096,
    (768, 12): 86_567_656,
}


@golden
def test_parameters_of_published_networks_to_the_unit(net: Golden) -> None:
    assert params(net.arch) == net.params
    assert params(replace(net.arch, rel_pos=True)) == net.params_rel_pos
    assert params(net.arch.with_classes(0)) == net.params_encoder


@golden
def test_macs_of_published_networks_to_the_unit(net: Golden) -> None:
    assert macs(net.arch) == net.macs
    assert macs(replace(net.arch, rel_pos=True)) == net.macs_rel_pos


@pytest.mark.parametrize(("width_and_heads", "expected"), PLAIN_PARAMS.items(), ids=str)
def test_parameters_of_plain_width_slices(width_and_heads: tuple[int, int], expected: int) -> None:
    assert params(plain_vit(*width_and_heads)) == expected


@pytest.mark.parametrize(
    ("embed_dim", "heads", "params_m", "gmacs"),
    [(192, 3, 5.717, 1.254), (384, 6, 22.051, 4.599), (768, 12, 86.568, 17.564)],
    ids=["DeiT-T", "DeiT-S", "DeiT-B"],
)
def test_cost_of_deit_counts_the_attention_products(embed_dim: int, heads: int, params_m: float, gmacs: float) -> None:
    price = cost(plain_vit(embed_dim, heads))
    assert round(price.params_m, 3) == params_m
    assert round(price.gmacs, 3) == gmacs


def test_doubling_the_image_side_costs_more_than_fourfold() -> None:
    assert macs(plain_vit(192, 3, img_size=448)) > 4 * macs(plain_vit(192, 3))


def test_every_term_of_a_network_small_enough_to_count_by_hand() -> None:
    arch = Architecture(
        embed_dim=6,
        depth=1,
        num_heads=(2,),
        mlp_ratio=(1.5,),
        head_dim=5,
        img_size=4,
        patch_size=2,
        in_chans=1,
        num_classes=3,
    )
    embedding = 4 * 6 + 6 + 5 * 6 + 6  # projection, its bias, positions, class token
    attention = 6 * 30 + 30 + 10 * 6 + 6
    mlp = 6 * 9 + 9 + 9 * 6 + 6
    norms = 3 * 12
    assert params(arch) == embedding + attention + mlp + norms + 6 * 3 + 3

    projections = 5 * (6 * 30 + 10 * 6)
    products = 2 * (5 * 5) * 10  # queries with keys, weights with values
    assert macs(arch) == 4 * 4 * 6 + projections + products + 2 * 5 * 6 * 9 + 3 * 6


def test_units_of_the_record() -> None:
    price = Cost(params=5_902_600, macs=1_319_799_552)
    assert price.params_m == 5.9026
    assert price.gmacs == 1.319799552
