"""Slimmable networks: grids of widths, subnets and how they are cut."""

from __future__ import annotations

import json

import pytest

from models.architecture import Architecture, Pool
from models.slicing import Cut, QkvSlicing, count_parameters
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable, SlimmableError, grid
from search.cost import cost


def deit_small(head_dim: int = 64, *, distilled: bool = False) -> Architecture:
    return Architecture(
        embed_dim=6 * head_dim,
        depth=12,
        num_heads=(6,) * 12,
        mlp_ratio=(4.0,) * 12,
        head_dim=head_dim,
        pool=Pool.TOKEN,
        distilled=distilled,
    )


@pytest.mark.parametrize(("step", "widths"), [(1 / 32, 25), (1 / 16, 13), (1 / 8, 7), (1 / 4, 4)])
def test_published_grids_have_as_many_widths_as_published(step: float, widths: int) -> None:
    dims = grid(64, 0.25, step)
    assert len(dims) == widths
    assert (dims[0], dims[-1]) == (16, 64)


@pytest.mark.parametrize(("smallest", "step", "dims"), [(0.5, 0.25, (32, 48, 64)), (0.5, 0.5, (32, 64))])
def test_a_grid_may_have_two_or_three_widths(smallest: float, step: float, dims: tuple[int, ...]) -> None:
    assert grid(64, smallest, step) == dims


def test_without_a_step_every_whole_width_is_in_the_grid() -> None:
    assert grid(32, 0.25, None) == tuple(range(8, 33))


def test_ratios_that_are_no_binary_fractions_lead_to_whole_widths() -> None:
    assert grid(48, 1 / 3, 1 / 6) == (16, 24, 32, 40, 48)


@pytest.mark.parametrize(
    ("head_dim", "smallest", "step", "pointer"),
    [
        (64, 0.125, 0.25, "/step"),  # 4.5 widths
        (16, 0.25, 1 / 32, "/step"),  # half channels
        (64, 0.3, 0.1, "/smallest"),
        (64, 1.0, 0.1, "/smallest"),
    ],
)
def test_a_grid_that_misses_whole_channels_or_the_full_width_is_refused(
    head_dim: int, smallest: float, step: float, pointer: str
) -> None:
    with pytest.raises(SlimmableError) as refused:
        grid(head_dim, smallest, step)
    assert refused.value.problems[0].pointer == pointer


def test_a_refused_step_names_those_that_fit() -> None:
    with pytest.raises(SlimmableError, match="1/32, 1/16"):
        grid(64, 0.125, 0.25)


@pytest.mark.parametrize(
    ("head_dim", "plain", "distilled", "gmacs"),
    [
        (16, 1_532_104, 1_629_296, 0.368),
        (20, 2_329_600, 2_450_840, 0.542),
        (24, 3_292_984, 3_438_272, 0.749),
        (32, 5_717_416, 5_910_800, 1.261),
        (48, 12_556_936, 12_846_512, 2.680),
        (64, 22_050_664, 22_436_432, 4.624),
    ],
)
def test_widths_of_deit_small_cost_what_is_known(head_dim: int, plain: int, distilled: int, gmacs: float) -> None:
    net = Slimmable(largest=deit_small(distilled=True), head_dims=(16, 64))
    arch = net.architecture(head_dim)
    assert cost(arch).params == count_parameters(arch) == distilled
    assert round(cost(arch).gmacs, 3) == gmacs
    assert cost(deit_small(head_dim)).params == plain


def test_every_whole_width_is_served_and_knows_its_trained_neighbours() -> None:
    net = Slimmable(largest=deit_small(), head_dims=(16, 32, 64))
    assert list(net.served) == list(range(16, 65))
    assert net.neighbours(17) == (16, 32)
    assert net.neighbours(32) == (32, 32)
    assert not net.is_trained(17)
    assert net.head_dim_of(17 * 6) == 17


@pytest.mark.parametrize("embed_dim", [15 * 6, 17 * 6 + 1, 65 * 6])
def test_a_token_width_that_is_no_subnet_is_refused(embed_dim: int) -> None:
    with pytest.raises(SlimmableError, match="a multiple of 6 from 96 to 384"):
        Slimmable(largest=deit_small(), head_dims=(16, 64)).head_dim_of(embed_dim)


@pytest.mark.parametrize(
    ("isolated", "trailing"),
    [
        (IsolatedActivation.OFF, ()),
        (IsolatedActivation.PAPER, (16,)),
        (IsolatedActivation.OFFICIAL, (17, 32, 63)),
    ],
)
def test_isolated_activation_isolates_the_smallest_from_the_others(
    isolated: IsolatedActivation, trailing: tuple[int, ...]
) -> None:
    net = Slimmable(largest=deit_small(), head_dims=(16, 32, 64), isolated=isolated)
    assert tuple(dim for dim in (16, 17, 32, 63, 64) if net.cut(dim).trailing) == trailing


def test_the_released_conventions_are_one_cut() -> None:
    net = Slimmable(
        largest=deit_small(),
        head_dims=(16, 64),
        qkv=QkvSlicing.CONTIGUOUS,
        isolated=IsolatedActivation.OFFICIAL,
        attention_scale=AttentionScale.FULL,
    )
    assert net.cut(32) == Cut(trailing=True, qkv=QkvSlicing.CONTIGUOUS, full_scale=True)
    # A network of its own divides by the root of its width of a head, here 32.
    assert net.cut(32).query_factor(net.largest, net.architecture(32)) * 32**-0.5 == pytest.approx(64**-0.5)


def test_it_survives_json() -> None:
    net = Slimmable(largest=deit_small(distilled=True), head_dims=(16, 64), isolated=IsolatedActivation.PAPER)
    assert Slimmable.from_json(json.loads(json.dumps(net.to_json()))) == net


@pytest.mark.parametrize("dims", [(64,), (16, 32), (32, 16, 64), (16, 16, 64), (0, 64)])
def test_trained_widths_end_with_the_whole_network(dims: tuple[int, ...]) -> None:
    with pytest.raises(SlimmableError, match="head_dims"):
        Slimmable(largest=deit_small(), head_dims=dims)


def test_tokens_are_as_wide_as_all_heads() -> None:
    arch = Architecture(embed_dim=96, depth=1, num_heads=(2,), mlp_ratio=(4.0,), head_dim=16)
    with pytest.raises(SlimmableError, match="as wide as the heads"):
        Slimmable(largest=arch, head_dims=(8, 16))
