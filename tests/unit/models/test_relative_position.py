"""Relative position on keys and values, against a literal reference with one vector for every pair of tokens."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor

from models.architecture import REL_POS_LENGTH, REL_POS_TABLES, Architecture, Pool
from models.export import verify_export, write_export
from models.export_record import Accuracy, ExportRecord, Interpolation, Preprocessing, Provenance
from models.extract import build_timm, extract_state, load_backbone
from models.initialisation import initial_state
from models.masked import random_masking
from models.slicing import AxisSlice, count_parameters, slice_table
from models.supernet import Supernet
from models.templates import model
from models.templates.model import RelativeAttention, places, relative_attention
from search.cost import params
from tests.unit.models.toys import LARGEST, random_subnet, randomise, seeded
from tests.unit.published import GOLDEN, Golden

RELATIVE = replace(LARGEST, rel_pos=True)
SMALL = Architecture(
    embed_dim=10,
    depth=2,
    num_heads=(2, 3),
    mlp_ratio=(2.0, 1.0),
    head_dim=6,
    img_size=12,
    patch_size=3,
    num_classes=5,
    rel_pos=True,
)
# 18 patches a side, so that distances beyond the tables' reach occur.
WIDE_GRID = replace(RELATIVE, img_size=54, depth=1, num_heads=(2,), mlp_ratio=(1.0,), head_dim=3, embed_dim=8)


def supernet(largest: Architecture = RELATIVE, seed: int = 0) -> Supernet:
    net = Supernet(largest, seeded(seed))
    randomise(net.state_dict(), seeded(seed + 1))
    return net


def images(batch: int = 2, arch: Architecture = RELATIVE) -> Tensor:
    return torch.randn(batch, arch.in_chans, arch.img_size, arch.img_size, generator=seeded(5))


def entry(place: tuple[int, int] | None, seen: tuple[int, int] | None, axis: int) -> int:
    """Entry of a table for a token at ``seen`` from one at ``place``; None is the class token."""
    if place is None or seen is None:
        return 0
    return max(-14, min(14, seen[axis] - place[axis])) + 15


def pair_vectors(rows: Tensor, cols: Tensor, ids: list[int], grid: int) -> Tensor:
    """(T, T, D): a vector for every pair of the class token and patches ``ids`` of one image."""
    at = [None, *(divmod(i, grid) for i in ids)]
    by_axis = [
        torch.stack([torch.stack([table[entry(query, key, axis)] for key in at]) for query in at])
        for axis, table in enumerate((rows, cols))
    ]
    return by_axis[0] + by_axis[1]


def dense_attention(q: Tensor, k: Tensor, v: Tensor, tables: list[Tensor], ids: list[int], grid: int) -> Tensor:
    """One image, (h, T, D): each query sees its own keys and values."""
    keys = k.unsqueeze(1) + pair_vectors(tables[0], tables[1], ids, grid)
    values = v.unsqueeze(1) + pair_vectors(tables[2], tables[3], ids, grid)
    logits = (q.unsqueeze(2) * keys).sum(-1) / sqrt(q.shape[-1])
    return (logits.softmax(-1).unsqueeze(-1) * values).sum(2)


def dense_tokens(state: dict[str, Tensor], arch: Architecture, x: Tensor, ids_keep: Tensor) -> Tensor:
    """The tokens of one network before its final norm, image by image, from the formulas of a Vision Transformer."""

    def norm(name: str, t: Tensor) -> Tensor:
        return F.layer_norm(t, t.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], arch.norm_eps)

    def linear(name: str, t: Tensor) -> Tensor:
        return t @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    answers = []
    for image, ids in zip(x, ids_keep.tolist(), strict=True):
        patches = F.conv2d(
            image, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=arch.patch_size
        )
        t = torch.cat((state["cls_token"][0], patches.flatten(1).T)) + state["pos_embed"][0]
        t = t[[0, *(i + 1 for i in ids)]]
        for i in range(arch.depth):
            name = f"blocks.{i}"
            qkv = linear(f"{name}.attn.qkv", norm(f"{name}.norm1", t))
            q, k, v = qkv.view(len(t), 3, arch.num_heads[i], arch.head_dim).permute(1, 2, 0, 3)
            tables = [state[f"{name}.attn.{table}"] for table in REL_POS_TABLES]
            mixed = dense_attention(q, k, v, tables, ids, arch.grid_size)
            t = t + linear(f"{name}.attn.proj", mixed.transpose(0, 1).flatten(1))
            t = t + linear(f"{name}.mlp.fc2", F.gelu(linear(f"{name}.mlp.fc1", norm(f"{name}.norm2", t))))
        answers.append(t)
    return torch.stack(answers)


@pytest.mark.parametrize("net", GOLDEN, ids=lambda net: net.name)
def test_count_of_published_networks_with_relative_position_to_the_unit(net: Golden) -> None:
    assert count_parameters(replace(net.arch, rel_pos=True)) == net.params_rel_pos


def test_published_network_built_with_relative_position_has_the_published_size() -> None:
    built = build_timm(replace(GOLDEN[0].arch, rel_pos=True))
    assert sum(p.numel() for p in built.parameters()) == GOLDEN[0].params_rel_pos


def test_count_equals_the_closed_form_for_random_architectures() -> None:
    rng = random.Random(0)
    for _ in range(50):
        arch = random_subnet(rng, largest=RELATIVE)
        assert count_parameters(arch) == params(arch), arch


def test_tables_are_whole_in_the_heads_and_cut_to_the_width_of_a_head() -> None:
    table = slice_table(RELATIVE, replace(SMALL, head_dim=4))
    for name in REL_POS_TABLES:
        assert table[f"blocks.1.attn.{name}"] == (AxisSlice((30,), (30,)), AxisSlice((6,), (4,)))


def test_loader_and_record_agree_on_the_tables() -> None:
    assert model.TABLE_LENGTH == REL_POS_LENGTH
    names = [name for name, _ in RelativeAttention(8, grid=2, num_heads=2).named_parameters() if "rel_pos" in name]
    assert tuple(names) == REL_POS_TABLES


def test_tables_start_as_in_autoformer() -> None:
    state = initial_state(replace(WIDE_GRID, head_dim=200), seeded(0))
    for name in REL_POS_TABLES:
        tensor = state[f"blocks.0.attn.{name}"]
        assert tensor.std().item() == pytest.approx(0.02, rel=0.05)
        assert abs(tensor.mean().item()) < 0.002


@pytest.mark.parametrize("arch", [SMALL, WIDE_GRID], ids=["4x4", "18x18"])
def test_attention_and_its_gradients_equal_the_literal_reference(arch: Architecture) -> None:
    grid, draw = arch.grid_size, seeded(3)
    masked = random_masking(2, grid**2, 7, draw).ids_keep
    if grid > 14:
        masked[:, :2] = torch.tensor([0, grid**2 - 1])  # opposite corners, farther apart than the tables reach
    inputs = [torch.randn(2, 3, 8, 6, generator=draw).double().requires_grad_() for _ in range(3)]
    tables = [torch.randn(30, 6, generator=draw).double().requires_grad_() for _ in range(4)]
    q, k, v = inputs
    keys, values = torch.cat(tables[:2]), torch.cat(tables[2:])
    found = relative_attention(q, k, v, keys, values, places(masked, grid), grid)
    expected = torch.stack(
        [dense_attention(q[i], k[i], v[i], tables, ids, grid) for i, ids in enumerate(masked.tolist())]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn(found.shape, generator=draw).double()
    by_ours = torch.autograd.grad((found * weights).sum(), inputs + tables)
    by_reference = torch.autograd.grad((expected * weights).sum(), inputs + tables)
    for ours, theirs in zip(by_ours, by_reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_supernet_equals_the_literal_reference_on_all_and_on_visible_patches() -> None:
    rng, net, x = random.Random(2), supernet(), images()
    everything = torch.arange(RELATIVE.num_patches).repeat(2, 1)
    for n in range(12):
        arch = random_subnet(rng, largest=RELATIVE)
        state = extract_state(net.state_dict(), RELATIVE, arch)
        kept = random_masking(2, arch.num_patches, rng.randint(1, 15), seeded(n)).ids_keep
        for ids, found in ((everything, net.tokens(x, arch)), (kept, net.tokens(x, arch, kept))):
            expected = dense_tokens(state, arch, x, ids)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_forward_equals_the_extracted_network_for_50_random_architectures() -> None:
    rng, worst = random.Random(0), 0.0
    for pool in Pool:
        largest = replace(RELATIVE, pool=pool)
        net, x = supernet(largest), images()
        for _ in range(25):
            arch = random_subnet(rng, largest=largest)
            alone = build_timm(arch).eval()
            alone.load_state_dict(extract_state(net.state_dict(), largest, arch))
            worst = max(worst, (net(x, arch) - alone(x)).abs().max().item())
    assert worst <= 1e-5


@torch.no_grad()
def test_all_patches_in_any_order_equal_the_full_forward() -> None:
    for arch in (SMALL, WIDE_GRID):
        net, x = supernet(arch), images(arch=arch)
        order = random_masking(2, arch.num_patches, arch.num_patches, seeded(4)).ids_keep
        found = net.tokens(x, arch, order)
        full = net.tokens(x, arch)
        moved = full[:, 1:].gather(1, order.unsqueeze(-1).expand(-1, -1, arch.embed_dim))
        torch.testing.assert_close(found, torch.cat((full[:, :1], moved), dim=1), rtol=0, atol=1e-5)


def test_gradients_repeat_bit_by_bit_and_reach_only_the_slice() -> None:
    arch = replace(SMALL, head_dim=4)
    kept = random_masking(8, arch.num_patches, 6, seeded(1)).ids_keep

    def gradients() -> dict[str, Tensor]:
        net = supernet()
        net.tokens(images(8), arch, kept).square().sum().backward()
        return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}

    one, other = gradients(), gradients()
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name in REL_POS_TABLES:
        gradient = one[f"blocks.1.attn.{name}"]
        assert gradient[:, :4].abs().sum() > 0
        assert (gradient[:, 4:] == 0).all()
        # On a grid of 4 x 4 patches distances are -3..3, entries 12 to 18; entry 0 is the class token's.
        assert (gradient[19:] == 0).all()
        assert (gradient[1:12] == 0).all()


def test_built_network_is_timms_but_for_its_attention_and_trains() -> None:
    built = build_timm(SMALL, seeded(0))
    assert type(built) is VisionTransformer
    assert {type(block) for block in built.blocks} == {Block}
    assert {type(block.attn) for block in built.blocks} == {RelativeAttention}
    built(images()).square().sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


def test_attention_without_loaded_tables_cannot_pass_for_a_network() -> None:
    built = build_timm(SMALL)
    state = initial_state(replace(SMALL, rel_pos=False), seeded(0))
    built.load_state_dict(state, strict=False)
    assert built(images()).isnan().all()


def test_attention_of_a_built_network_refuses_some_of_the_patches_and_masks() -> None:
    attention = build_timm(SMALL, seeded(0)).blocks[0].attn
    with pytest.raises(ValueError, match="expected 17 tokens and no mask, found 9"):
        attention(torch.zeros(1, 9, 10))
    with pytest.raises(ValueError, match="no mask"):
        attention(torch.zeros(1, 17, 10), attn_mask=torch.ones(17, 17, dtype=torch.bool))


def test_backbone_of_a_headless_supernet_starts_a_headed_network() -> None:
    largest = RELATIVE.with_classes(0)
    state = extract_state(initial_state(largest, seeded(0)), largest, SMALL.with_classes(0))
    network = build_timm(SMALL, seeded(1))
    load_backbone(network, state)
    assert torch.equal(network.get_parameter("blocks.1.attn.rel_pos_v_cols"), state["blocks.1.attn.rel_pos_v_cols"])


def test_export_is_proved_in_a_process_without_the_project(tmp_path: Path) -> None:
    state = initial_state(SMALL, seeded(0))
    randomise(state, seeded(1))
    record = ExportRecord(
        architecture=SMALL,
        classes=tuple("abcde"),
        preprocessing=Preprocessing(size=12, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation=Interpolation.BICUBIC),
        costs={},
        scores={},
        accuracy=Accuracy(),
        provenance=Provenance(
            job="jb_1", seed=7, supernet_digest="aa", dataset_digest="bb", versions={}, retraining=None
        ),
    )
    write_export(tmp_path / "export", state, record)
    x, net = images(20), Supernet(SMALL, seeded(0))
    net.load_state_dict(state)
    parity = verify_export(tmp_path / "export", x, net(x, SMALL).detach())
    assert parity.params == params(SMALL)
    assert json.loads((tmp_path / "export" / "architecture.json").read_text(encoding="utf-8"))["rel_pos"] is True
