from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import nn

from models.architecture import Architecture, Pool
from models.extract import StateError, build_timm, check_state, extract_state, load_backbone
from models.initialisation import initial_state
from tests.unit.models.toys import LARGEST, randomise, seeded
from tests.unit.published import GOLDEN, Golden

SMALL = Architecture(
    embed_dim=10, depth=2, num_heads=(2, 3), mlp_ratio=(2.0, 1.0), head_dim=6, img_size=12, patch_size=3, num_classes=5
)
UNIFORM = Architecture(
    embed_dim=12, depth=2, num_heads=(2, 2), mlp_ratio=(3.0, 3.0), head_dim=6, img_size=12, patch_size=3, num_classes=5
)


@pytest.mark.parametrize("net", GOLDEN[:3], ids=lambda net: net.name)
def test_published_network_built_by_timm_has_the_published_size(net: Golden) -> None:
    built = build_timm(net.arch)
    assert sum(p.numel() for p in built.parameters()) == net.params
    assert sum(p.numel() for p in build_timm(net.arch.with_classes(0)).parameters()) == net.params_encoder


def test_every_module_is_of_timms_or_torchs_own_class() -> None:
    built = build_timm(SMALL, seeded(0))
    assert type(built) is VisionTransformer
    assert {type(block) for block in built.blocks} == {Block}
    assert {type(block.attn) for block in built.blocks} == {Attention}
    assert {type(m).__module__.split(".")[0] for m in built.modules()} == {"timm", "torch"}


@torch.no_grad()
def test_uniform_network_loads_into_timms_plain_constructor() -> None:
    plain = VisionTransformer(
        img_size=12,
        patch_size=3,
        num_classes=5,
        embed_dim=12,
        depth=2,
        num_heads=2,
        mlp_ratio=3.0,
        global_pool="avg",
        fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    ).eval()
    supernet_state = initial_state(LARGEST, seeded(0))
    randomise(supernet_state, seeded(1))
    state = extract_state(supernet_state, LARGEST, UNIFORM)
    plain.load_state_dict(state)
    ours = build_timm(UNIFORM).eval()
    ours.load_state_dict(state)
    x = torch.randn(3, 3, 12, 12, generator=seeded(2))
    assert UNIFORM.is_uniform
    assert torch.equal(plain(x), ours(x))


@torch.no_grad()
def test_distilled_network_loads_into_timms_registered_one() -> None:
    arch = replace(UNIFORM, pool=Pool.TOKEN, distilled=True, layer_scale=True)
    plain = timm.create_model(
        "deit_tiny_distilled_patch16_224",
        img_size=12,
        patch_size=3,
        num_classes=5,
        embed_dim=12,
        depth=2,
        num_heads=2,
        mlp_ratio=3.0,
        init_values=1.0,
    ).eval()
    ours = build_timm(arch, seeded(0)).eval()
    randomise(ours.state_dict(), seeded(1))
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(3, 3, 12, 12, generator=seeded(2))
    assert torch.equal(plain(x), ours(x))


def test_building_a_distilled_network_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    build_timm(replace(SMALL, pool=Pool.TOKEN, distilled=True))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_both_heads_stay_fresh_when_a_backbone_is_loaded() -> None:
    arch = replace(SMALL, pool=Pool.TOKEN, distilled=True)
    network = build_timm(arch.with_classes(9), seeded(1))
    heads = [network.get_parameter(f"{head}.weight").clone() for head in ("head", "head_dist")]
    load_backbone(network, initial_state(arch, seeded(0)))
    assert torch.equal(network.get_parameter("head.weight"), heads[0])
    assert torch.equal(network.get_parameter("head_dist.weight"), heads[1])


@pytest.mark.parametrize("pool", list(Pool))
def test_norm_comes_before_the_pooling(pool: Pool) -> None:
    built = build_timm(replace(SMALL, pool=pool, norm_eps=1e-5), seeded(0))
    assert isinstance(built.norm, nn.LayerNorm)
    assert isinstance(built.fc_norm, nn.Identity)
    assert {m.eps for m in built.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}


def test_extracted_weights_share_nothing_with_the_supernet() -> None:
    state = initial_state(LARGEST, seeded(0))
    before = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in extract_state(state, LARGEST, LARGEST).values():
        assert tensor.is_contiguous()
        tensor.zero_()
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_network_without_loaded_weights_cannot_pass_for_one() -> None:
    assert build_timm(SMALL)(torch.zeros(1, 3, 12, 12)).isnan().all()


def test_fresh_weights_come_from_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, other = build_timm(SMALL, seeded(1)), build_timm(SMALL, seeded(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one(torch.zeros(1, 3, 12, 12)).isfinite().all()


def test_backbone_of_a_headless_supernet_gets_a_fresh_head() -> None:
    largest = LARGEST.with_classes(0)
    state = extract_state(initial_state(largest, seeded(0)), largest, SMALL.with_classes(0))
    network = build_timm(SMALL.with_classes(9), seeded(1))
    head = network.head.weight.detach().clone()
    load_backbone(network, state)
    assert torch.equal(network.get_parameter("blocks.1.mlp.fc1.weight"), state["blocks.1.mlp.fc1.weight"])
    assert torch.equal(network.head.weight, head)


def test_backbone_of_another_network_is_refused() -> None:
    state = initial_state(SMALL, seeded(0))
    del state["norm.bias"]
    state["gamma"] = torch.zeros(1)
    state["cls_token"] = torch.zeros(1, 1, 3)
    with pytest.raises(StateError, match=r"cls_token, gamma, norm\.bias"):
        load_backbone(build_timm(SMALL), state)


def test_state_of_another_network_is_refused_with_the_tensors_at_fault() -> None:
    state = initial_state(LARGEST, seeded(0))
    del state["norm.bias"]
    state["blocks.0.ls1.gamma"] = torch.zeros(28)
    state["cls_token"] = torch.zeros(1, 1, 3)
    with pytest.raises(StateError) as caught:
        extract_state(state, LARGEST, SMALL)
    assert str(caught.value) == (
        "norm.bias is missing; blocks.0.ls1.gamma is unexpected; cls_token has shape (1, 1, 3), expected (1, 1, 28)"
    )
    check_state(initial_state(LARGEST, seeded(0)), LARGEST)
