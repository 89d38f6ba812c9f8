from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import pytest

from models.architecture import Architecture, Pool
from models.slicing import (
    AxisSlice,
    SlicingError,
    check_nested,
    count_parameters,
    parameter_shapes,
    slice_table,
)
from search.cost import params
from tests.unit.models.toys import LARGEST, random_subnet
from tests.unit.published import GOLDEN, Golden

SMALL = Architecture(
    embed_dim=10,
    depth=2,
    num_heads=(2, 3),
    mlp_ratio=(2.0, 1.0),
    head_dim=6,
    img_size=12,
    patch_size=3,
    num_classes=5,
)


@pytest.mark.parametrize("net", GOLDEN, ids=lambda net: net.name)
def test_count_of_published_networks_to_the_unit(net: Golden) -> None:
    assert count_parameters(net.arch) == net.params
    assert count_parameters(net.arch.with_classes(0)) == net.params_encoder


def test_count_equals_the_closed_form_for_random_architectures() -> None:
    rng = random.Random(0)
    for _ in range(200):
        arch = random_subnet(rng)
        assert count_parameters(arch) == params(arch), arch


def test_table_keeps_exactly_the_shapes_of_the_subnet() -> None:
    rng = random.Random(1)
    full = parameter_shapes(LARGEST)
    for _ in range(100):
        arch = random_subnet(rng)
        table = slice_table(LARGEST, arch)
        assert {name: tuple(s.kept for s in slices) for name, slices in table.items()} == parameter_shapes(arch)
        assert {name: tuple(s.length for s in slices) for name, slices in table.items()} == {
            name: full[name] for name in table
        }


def test_query_key_and_value_rows_keep_their_role_in_weight_and_bias() -> None:
    table = slice_table(LARGEST, SMALL)
    by_role_and_head = AxisSlice((3, 4, 6), (3, 2, 6))
    assert table["blocks.0.attn.qkv.weight"] == (by_role_and_head, AxisSlice((28,), (10,)))
    assert table["blocks.0.attn.qkv.bias"] == (by_role_and_head,)
    assert table["blocks.0.attn.proj.weight"] == (AxisSlice((28,), (10,)), AxisSlice((4, 6), (2, 6)))


def test_deeper_blocks_and_the_head_of_a_backbone_are_left_out() -> None:
    table = slice_table(LARGEST, SMALL.with_classes(0))
    assert not [name for name in table if name.startswith(("blocks.2", "head"))]
    assert "head.weight" in slice_table(LARGEST, SMALL)


def test_largest_slices_itself_whole() -> None:
    table = slice_table(LARGEST, LARGEST)
    assert all(s.is_whole for slices in table.values() for s in slices)
    assert sum(prod(s.kept for s in slices) for slices in table.values()) == count_parameters(LARGEST)


def test_table_is_shared_and_read_only() -> None:
    table = slice_table(LARGEST, SMALL)
    assert slice_table(LARGEST, replace(SMALL)) is table
    with pytest.raises(TypeError):
        table["norm.weight"] = ()  # type: ignore[index]


@pytest.mark.parametrize(
    ("arch", "pointer", "found", "allowed"),
    [
        (replace(SMALL, embed_dim=30), "/embed_dim", 30, "28"),
        (replace(SMALL, depth=4, num_heads=(1,) * 4, mlp_ratio=(1.0,) * 4), "/depth", 4, "3"),
        (replace(SMALL, num_heads=(2, 4)), "/num_heads/1", 4, "3"),
        (replace(SMALL, head_dim=8), "/head_dim", 8, "6"),
        (replace(SMALL, mlp_ratio=(2.0, 8.0)), "/mlp_ratio/1", "8 (hidden width 80)", "70"),
        (replace(SMALL, img_size=15), "/img_size", 15, "12"),
        (replace(SMALL, patch_size=4), "/patch_size", 4, "3"),
        (replace(SMALL, in_chans=1), "/in_chans", 1, "3"),
        (replace(SMALL, pool=Pool.TOKEN), "/pool", Pool.TOKEN, "avg"),
        (replace(SMALL, norm_eps=1e-5), "/norm_eps", 1e-5, "1e-06"),
        (replace(SMALL, rel_pos=True), "/rel_pos", True, "False"),
        (replace(SMALL, num_classes=7), "/num_classes", 7, "5 or 0"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("/") else "",
)
def test_mismatch_names_the_axis_and_both_values(arch: Architecture, pointer: str, found: object, allowed: str) -> None:
    with pytest.raises(SlicingError) as caught:
        slice_table(LARGEST, arch)
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.found) == (pointer, found)
    assert allowed in problem.allowed


def test_all_mismatches_are_reported_at_once() -> None:
    with pytest.raises(SlicingError) as caught:
        check_nested(LARGEST, replace(SMALL, embed_dim=30, head_dim=8, img_size=24))
    assert [p.pointer for p in caught.value.problems] == ["/img_size", "/embed_dim", "/head_dim"]


def test_headed_architecture_from_a_headless_supernet_is_refused_with_the_reason() -> None:
    with pytest.raises(SlicingError, match=r"/num_classes: found 5, allowed is 0, since the supernet has no head"):
        slice_table(LARGEST.with_classes(0), SMALL)


@pytest.mark.parametrize(
    ("factors", "take"), [((4,), (5,)), ((4,), (0,)), ((3, 4), (3,)), ((), ())], ids=["more", "none", "ranks", "empty"]
)
def test_impossible_axis_slice_is_refused(factors: tuple[int, ...], take: tuple[int, ...]) -> None:
    with pytest.raises(SlicingError):
        AxisSlice(factors, take)
