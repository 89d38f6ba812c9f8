from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from models.architecture import Architecture, Pool
from models.extract import build_timm, extract_state
from models.masked import random_masking
from models.slicing import SlicingError, parameter_shapes, slice_table
from models.supernet import Supernet
from tests.unit.models.toys import LARGEST, random_subnet, randomise, seeded

SMALL = Architecture(
    embed_dim=10, depth=2, num_heads=(2, 3), mlp_ratio=(2.0, 1.0), head_dim=6, img_size=12, patch_size=3, num_classes=5
)


def supernet(largest: Architecture = LARGEST, seed: int = 0) -> Supernet:
    net = Supernet(largest, seeded(seed))
    randomise(net.state_dict(), seeded(seed + 1))
    return net


def images(batch: int = 2, arch: Architecture = LARGEST, seed: int = 5) -> torch.Tensor:
    return torch.randn(batch, arch.in_chans, arch.img_size, arch.img_size, generator=seeded(seed))


def test_parameters_have_the_names_and_shapes_of_the_table() -> None:
    assert {n: tuple(p.shape) for n, p in supernet().named_parameters()} == parameter_shapes(LARGEST)


@torch.no_grad()
def test_forward_equals_the_extracted_timm_network_for_200_random_architectures() -> None:
    rng = random.Random(0)
    worst = 0.0
    for pool in Pool:
        largest = replace(LARGEST, pool=pool)
        net, x = supernet(largest), images()
        for _ in range(100):
            arch = random_subnet(rng, largest=largest)
            alone = build_timm(arch).eval()
            alone.load_state_dict(extract_state(net.state_dict(), largest, arch))
            worst = max(worst, (net(x, arch) - alone(x)).abs().max().item())
    assert worst <= 1e-5


def test_gradients_outside_the_slice_are_exactly_zero_and_inside_are_not() -> None:
    rng = random.Random(1)
    for arch in (SMALL, *(random_subnet(rng) for _ in range(10))):
        net = supernet()
        net(images(), arch).square().sum().backward()
        table = slice_table(LARGEST, arch)
        for name, parameter in net.named_parameters():
            if name not in table:
                assert parameter.grad is None, name
                continue
            assert parameter.grad is not None, name
            inside = torch.zeros_like(parameter, dtype=torch.bool)
            for index in torch.cartesian_prod(*(_kept_indices(s.factors, s.take) for s in table[name])).view(
                -1, parameter.ndim
            ):
                inside[tuple(index)] = True
            assert (parameter.grad[~inside] == 0).all(), name
            assert parameter.grad[inside].abs().sum() > 0, name


def _kept_indices(factors: tuple[int, ...], take: tuple[int, ...]) -> torch.Tensor:
    """Positions on the flat axis that a slice keeps, spelt out one by one."""
    kept = []
    for flat in range(int(torch.tensor(factors).prod())):
        rest, inside = flat, True
        for factor, length in zip(reversed(factors), reversed(take), strict=True):
            rest, digit = divmod(rest, factor)
            inside &= digit < length
        if inside:
            kept.append(flat)
    return torch.tensor(kept)


def test_sliced_qkv_rows_keep_their_roles() -> None:
    net = supernet()
    full = net.state_dict()["blocks.1.attn.qkv.weight"]
    bias = net.state_dict()["blocks.1.attn.qkv.bias"]
    H, D = LARGEST.num_heads[1], LARGEST.head_dim
    for role in range(3):
        for head in range(H):
            rows = slice((role * H + head) * D, (role * H + head + 1) * D)
            full[rows, 0] = bias[rows] = torch.arange(D) + 100 * head + 1000 * role
    arch = replace(SMALL, num_heads=(1, 2), head_dim=4)
    state = extract_state(net.state_dict(), LARGEST, arch)
    expected = torch.tensor([1000.0 * r + 100 * h + c for r in range(3) for h in range(2) for c in range(4)])
    assert torch.equal(state["blocks.1.attn.qkv.weight"][:, 0], expected)
    assert torch.equal(state["blocks.1.attn.qkv.bias"], expected)


@torch.no_grad()
def test_nothing_leaks_from_one_subnet_into_the_next() -> None:
    net, x = supernet(), images()
    first = net(x, SMALL)
    net(x, LARGEST)
    assert torch.equal(net(x, SMALL), first)


@torch.no_grad()
def test_initial_weights_depend_on_the_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = Supernet(LARGEST, seeded(3)).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    other = Supernet(LARGEST, seeded(3)).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["norm.weight"].eq(1).all()
    assert one["blocks.0.attn.qkv.bias"].eq(0).all()


@torch.no_grad()
def test_keeping_all_patches_equals_the_full_forward() -> None:
    net, x = supernet(), images()
    everything = torch.arange(LARGEST.num_patches).repeat(2, 1)
    torch.testing.assert_close(net.tokens(x, SMALL, everything), net.tokens(x, SMALL), rtol=0, atol=1e-6)


@torch.no_grad()
def test_hidden_patches_do_not_reach_the_visible_ones() -> None:
    net, x = supernet(), images()
    kept = random_masking(2, LARGEST.num_patches, 5, seeded(0)).ids_keep
    before = net.tokens(x, SMALL, kept)
    hidden = torch.ones(2, LARGEST.num_patches, dtype=torch.bool).scatter(1, kept, False)
    grid, p = LARGEST.grid_size, LARGEST.patch_size
    pixels = hidden.view(2, 1, grid, grid).repeat_interleave(p, 2).repeat_interleave(p, 3)
    assert torch.equal(net.tokens(torch.where(pixels, 99.0, x), SMALL, kept), before)
    assert not torch.equal(net.tokens(torch.where(pixels, x, 99.0), SMALL, kept), before)


@torch.no_grad()
def test_visible_patches_follow_the_order_of_their_ids() -> None:
    net, x = supernet(), images()
    one = net.tokens(x, SMALL, torch.tensor([[3, 7, 1], [0, 2, 5]]))
    other = net.tokens(x, SMALL, torch.tensor([[1, 3, 7], [5, 0, 2]]))
    torch.testing.assert_close(one[:, [0, 3, 1, 2]], other, rtol=0, atol=1e-6)


@torch.no_grad()
def test_headless_network_answers_with_pooled_features() -> None:
    net, x = supernet(), images()
    backbone = SMALL.with_classes(0)
    assert net(x, backbone).shape == (2, SMALL.embed_dim)
    expected = net.final_norm(net.tokens(x, backbone), backbone)[:, 1:].mean(dim=1)
    assert torch.equal(net(x, backbone), expected)


def test_architecture_outside_the_supernet_is_refused() -> None:
    with pytest.raises(SlicingError, match="/embed_dim: found 32, allowed is at most 28"):
        supernet()(images(), replace(SMALL, embed_dim=32))


@pytest.mark.parametrize("shape", [(3, 12, 12), (2, 1, 12, 12), (2, 3, 12, 15)], ids=str)
def test_images_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(B, 3, 12, 12\)"):
        supernet()(torch.zeros(shape), SMALL)


@pytest.mark.parametrize(
    "ids", [torch.zeros(2, 3), torch.zeros(1, 3).long(), torch.zeros(2).long()], ids=["type", "batch", "rank"]
)
def test_patch_ids_of_a_wrong_shape_are_refused(ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="ids_keep"):
        supernet().tokens(images(), SMALL, ids)


@torch.no_grad()
def test_features_after_a_block_are_those_of_the_network_that_ends_there() -> None:
    net, x = supernet(), images()
    after_one, after_two = net.features(x, SMALL, after=(1, 2))
    shallow = replace(SMALL, depth=1, num_heads=SMALL.num_heads[:1], mlp_ratio=SMALL.mlp_ratio[:1])
    assert torch.equal(after_one, net.tokens(x, shallow))
    assert torch.equal(after_two, net.tokens(x, SMALL))


@pytest.mark.parametrize("after", [(), (0,), (3,), (2, 1), (1, 1)])
def test_features_of_blocks_that_do_not_exist_are_refused(after: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="allowed is 1 to 2, ascending"):
        supernet().features(images(), SMALL, after=after)
