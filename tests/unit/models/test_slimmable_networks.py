"""Subnets of slimmable networks: what they compute, what they learn, and the networks of their own made of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from models.architecture import Architecture, Pool
from models.extract import build_timm, extract_state
from models.initialisation import LAYER_SCALE, initial_state
from models.slicing import Cut, QkvSlicing, slice_table
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable
from models.supernet import Supernet
from tests.unit.models.toys import randomise, seeded
from workers.training.stochastic_depth import branch_scales

WHOLE = Architecture(
    embed_dim=18,
    depth=2,
    num_heads=(3, 3),
    mlp_ratio=(2.5, 2.5),
    head_dim=6,
    img_size=12,
    patch_size=3,
    num_classes=5,
    pool=Pool.TOKEN,
)
DISTILLED = replace(WHOLE, distilled=True)
SCALED = replace(WHOLE, layer_scale=True)
BOTH = replace(DISTILLED, layer_scale=True)
RELEASED = Slimmable(
    largest=replace(DISTILLED, norm_eps=1e-5),
    head_dims=(2, 4, 6),
    qkv=QkvSlicing.CONTIGUOUS,
    isolated=IsolatedActivation.OFFICIAL,
    attention_scale=AttentionScale.FULL,
)
NETS = {
    "released": RELEASED,
    **{
        f"{qkv}-{isolated}-{scale}": Slimmable(
            largest=largest, head_dims=(2, 4, 6), qkv=qkv, isolated=isolated, attention_scale=scale
        )
        for (qkv, isolated, scale), largest in zip(
            product(QkvSlicing, IsolatedActivation, AttentionScale), (WHOLE, DISTILLED, SCALED, BOTH) * 3, strict=True
        )
    },
    "relative": Slimmable(
        largest=replace(WHOLE, rel_pos=True, pool=Pool.AVG),
        head_dims=(2, 6),
        isolated=IsolatedActivation.PAPER,
        attention_scale=AttentionScale.FULL,
    ),
}


def supernet(largest: Architecture) -> Supernet:
    net = Supernet(largest, seeded(0))
    randomise(net.state_dict(), seeded(1))
    return net


def images(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 3, 12, 12, generator=seeded(2))


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_every_width_equals_the_timm_network_extracted_from_it(name: str) -> None:
    net = NETS[name]
    whole, x = supernet(net.largest), images()
    for width in net.served:
        arch, cut = net.architecture(width), net.cut(width)
        alone = build_timm(arch).eval()
        alone.load_state_dict(extract_state(whole.state_dict(), net.largest, arch, cut))
        torch.testing.assert_close(alone(x), whole(x, arch, cut), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 5])
@torch.no_grad()
def test_heads_of_one_channel_and_images_of_one_patch_are_ordinary(heads: int) -> None:
    largest = replace(
        BOTH, embed_dim=3 * heads, num_heads=(heads,) * 2, head_dim=3, img_size=3, in_chans=1, num_classes=1
    )
    net = replace(RELEASED, largest=largest, head_dims=(1, 3))
    whole, x = supernet(largest), torch.randn(3, 1, 3, 3, generator=seeded(2))
    for width in (1, 2, 3):
        arch, cut = net.architecture(width), net.cut(width)
        alone = build_timm(arch).eval()
        alone.load_state_dict(extract_state(whole.state_dict(), largest, arch, cut))
        torch.testing.assert_close(alone(x), whole(x, arch, cut), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_attention_scale_of_the_whole_network_changes_what_subnets_say() -> None:
    whole, x = supernet(WHOLE), images()
    own, full = (whole(x, replace(WHOLE, embed_dim=12, head_dim=4), Cut(full_scale=full)) for full in (False, True))
    assert (own - full).abs().max() > 1e-4  # ten times what two networks may differ by


@pytest.mark.parametrize("name", ["released", "head_aligned-paper-per_width"])
def test_only_what_a_width_keeps_learns_from_it(name: str) -> None:
    net = NETS[name]
    for width in net.served:
        whole = supernet(net.largest)
        arch, cut = net.architecture(width), net.cut(width)
        sum(logits.square().sum() for logits in whole.logits(images(), arch, cut)).backward()
        # Entries are found by their values in an extracted copy, which no code of the gradient's path has made.
        numbered = {
            tensor: torch.arange(p.numel(), dtype=torch.float64).view(p.shape) for tensor, p in whole.named_parameters()
        }
        kept = extract_state(numbered, net.largest, arch, replace(cut, full_scale=False))
        assert kept.keys() == slice_table(net.largest, arch, cut).keys()
        for tensor, parameter in whole.named_parameters():
            assert parameter.grad is not None
            inside = torch.zeros(parameter.numel(), dtype=torch.bool)
            inside[kept[tensor].flatten().long()] = True
            learnt = parameter.grad.flatten()
            assert (learnt[~inside] == 0).all(), tensor
            assert learnt[inside].abs().sum() > 0, tensor


@torch.no_grad()
def test_isolated_subnets_share_nothing_with_the_smallest_below_its_complement() -> None:
    net = RELEASED
    numbered = {
        tensor: torch.arange(p.numel(), dtype=torch.float64).view(p.shape)
        for tensor, p in supernet(net.largest).named_parameters()
    }
    rows = {
        width: set(
            extract_state(numbered, net.largest, net.architecture(width), Cut(net.cut(width).trailing, net.qkv))[
                "blocks.0.mlp.fc1.bias"
            ].tolist()
        )
        for width in net.served
    }
    assert [width for width in net.served if rows[2] & rows[width]] == [2, 5, 6]


@torch.no_grad()
def test_the_heads_of_a_distilled_network_speak_apart_and_answer_together() -> None:
    net = supernet(DISTILLED)
    by_class, by_distillation = net.logits(images(), DISTILLED)
    assert by_class.shape == by_distillation.shape == (3, 5)
    assert not torch.equal(by_class, by_distillation)
    assert torch.equal(net(images(), DISTILLED), (by_class + by_distillation) / 2)
    # Class token and distillation token lead the tokens, each with a head of its own.
    first, second = net.final_norm(net.tokens(images(), DISTILLED), DISTILLED)[:, :2].unbind(1)
    torch.testing.assert_close(by_class, _head(net, "head", first))
    torch.testing.assert_close(by_distillation, _head(net, "head_dist", second))


def _head(net: Supernet, name: str, token: torch.Tensor) -> torch.Tensor:
    return token @ net.get_parameter(f"{name}.weight").T + net.get_parameter(f"{name}.bias")


@torch.no_grad()
def test_a_headless_distilled_network_answers_as_timms_does() -> None:
    backbone = DISTILLED.with_classes(0)
    net = supernet(DISTILLED)
    alone = build_timm(backbone).eval()
    alone.load_state_dict(extract_state(net.state_dict(), DISTILLED, backbone))
    assert [t.shape for t in net.logits(images(), backbone)] == [(3, 18), (3, 18)]
    torch.testing.assert_close(net(images(), backbone), alone(images()), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_patches_can_be_hidden_from_a_distilled_network() -> None:
    net, everything = supernet(BOTH), torch.arange(16).repeat(3, 1)
    torch.testing.assert_close(net.tokens(images(), BOTH, everything), net.tokens(images(), BOTH), rtol=0, atol=1e-6)
    assert net.tokens(images(), BOTH, everything[:, :4]).shape == (3, 2 + 4, 18)


@torch.no_grad()
def test_drops_multiply_what_each_branch_adds() -> None:
    net, arch = supernet(BOTH), BOTH
    drops = branch_scales(0.6, arch.depth, 3, seeded(3))
    assert drops.shape == (4, 3, 1, 1)
    alone = build_timm(arch).eval()
    alone.load_state_dict(net.state_dict())
    tokens = alone._pos_embed(alone.patch_embed(images()))
    for block, (attention, mlp) in zip(alone.blocks, drops.view(2, 2, 3, 1, 1), strict=True):
        tokens = tokens + attention * block.ls1(block.attn(block.norm1(tokens)))
        tokens = tokens + mlp * block.ls2(block.mlp(block.norm2(tokens)))
    tokens = alone.norm(tokens)
    expected = (alone.head(tokens[:, 0]), alone.head_dist(tokens[:, 1]))
    torch.testing.assert_close(net.logits(images(), arch, drops=drops), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_drops_of_ones_change_nothing() -> None:
    net, x = supernet(WHOLE), images()
    assert torch.equal(net.logits(x, WHOLE, drops=torch.ones(4, 3, 1, 1))[0], net(x, WHOLE))


def test_drops_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"drops have shape \(4, 2, 1, 1\), expected .* \(4, 3, 1, 1\)"):
        supernet(WHOLE).logits(images(), WHOLE, drops=torch.ones(4, 2, 1, 1))


def test_new_parts_start_as_their_papers_say() -> None:
    state = initial_state(BOTH, seeded(0))
    assert all((state[f"blocks.{i}.{scale}.gamma"] == LAYER_SCALE).all() for i in range(2) for scale in ("ls1", "ls2"))
    assert 0.01 < state["dist_token"].std() < 0.03
    assert 0.01 < state["head_dist.weight"].std() < 0.03
    assert (state["head_dist.bias"] == 0).all()
