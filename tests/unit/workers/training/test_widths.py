from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from models.architecture import Architecture
from models.slimmable import Slimmable, grid
from workers.training.widths import WidthPlan, WidthSampling


def net(head_dims: tuple[int, ...], head_dim: int = 64) -> Slimmable:
    largest = Architecture(
        embed_dim=2 * head_dim,
        depth=1,
        num_heads=(2,),
        mlp_ratio=(2.0,),
        head_dim=head_dim,
        img_size=8,
        patch_size=4,
        num_classes=3,
    )
    return Slimmable(largest=largest, head_dims=head_dims)


def draws(
    sampling: WidthSampling, head_dims: tuple[int, ...], steps: int = 400, **changes: Any
) -> list[tuple[int, ...]]:
    plan = WidthPlan(net=net(head_dims, head_dims[-1]), sampling=sampling, **changes)
    return [plan.draw(np.random.default_rng(step)) for step in range(steps)]


@pytest.mark.parametrize("sampling", WidthSampling)
def test_a_step_runs_from_the_whole_network_down_to_the_smallest(sampling: WidthSampling) -> None:
    for step in draws(sampling, grid(64, 0.25, 1 / 16)):
        assert (len(step), step[0], step[-1]) == (4, 64, 16)
        assert list(step) == sorted(step, reverse=True)
        assert 16 < step[2] <= step[1] < 64


@pytest.mark.parametrize(
    ("sampling", "step", "lower", "upper"),
    [
        (WidthSampling.PAPER, 1 / 32, 12, 11),
        (WidthSampling.PAPER, 1 / 16, 6, 5),
        (WidthSampling.PAPER, 1 / 8, 3, 2),
        (WidthSampling.PAPER, 1 / 4, 1, 1),
        (WidthSampling.CODE, 1 / 32, 11, 12),
        (WidthSampling.CODE, 1 / 16, 5, 6),
        (WidthSampling.CODE, 1 / 8, 2, 3),
        (WidthSampling.CODE, 1 / 4, 1, 1),
    ],
)
def test_each_half_of_the_grid_gives_one_width(sampling: WidthSampling, step: float, lower: int, upper: int) -> None:
    between = grid(64, 0.25, step)[1:-1]
    drawn = draws(sampling, grid(64, 0.25, step))
    assert {widths[2] for widths in drawn} == set(between[:lower])
    assert {widths[1] for widths in drawn} == set(between[lower:])
    assert len(between) == lower + upper


def test_without_stable_sampling_both_widths_come_from_the_whole_grid_with_equal_chances() -> None:
    drawn = draws(WidthSampling.OFF, (2, 4, 6, 8, 10, 12), 2000)
    counted = Counter(width for widths in drawn for width in widths[1:-1])
    # A share of 0.25 in 4000 draws has a standard deviation of 0.007.
    assert {width: count / 4000 for width, count in counted.items()} == pytest.approx(
        dict.fromkeys((4, 6, 8, 10), 0.25), abs=0.03
    )
    assert sum(widths[1] == widths[2] for widths in drawn) / 2000 == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize(
    ("sampling", "two", "three"),
    [
        (WidthSampling.PAPER, (8, 4), (8, 6, 4)),
        (WidthSampling.CODE, (8, 4), (8, 6, 4)),
        (WidthSampling.OFF, (8, 4), (8, 6, 6, 4)),
        (WidthSampling.USNET, (8, 4), (8, 6, 6, 4)),
    ],
)
def test_a_grid_of_two_or_three_widths_trains_those_that_exist(
    sampling: WidthSampling, two: tuple[int, ...], three: tuple[int, ...]
) -> None:
    assert set(draws(sampling, (4, 8), 5)) == {two}
    assert set(draws(sampling, (4, 6, 8), 5)) == {three}


def test_widths_leave_the_grid_as_often_as_stated_and_reach_all_between_their_neighbours() -> None:
    drawn = draws(WidthSampling.PAPER, (8, 12, 16, 20), 3000, off_grid=0.5)
    assert {widths[-1] for widths in drawn} == {8}
    between = Counter(width for widths in drawn for width in widths[1:-1])
    assert set(between) == set(range(9, 20))
    # 12 and 16 have six others each between their neighbours, three of which they share.
    assert between[12] / 3000 == pytest.approx(0.5, abs=0.03)
    assert between[9] / 3000 == pytest.approx(0.5 / 6, abs=0.02)
    assert between[13] / 3000 == pytest.approx(2 * 0.5 / 6, abs=0.02)


def test_the_smallest_is_moved_as_often_as_stated_and_never_to_the_next_of_the_grid() -> None:
    smallest = Counter(w[-1] for w in draws(WidthSampling.PAPER, (8, 12, 16, 20), 3000, off_grid_smallest=0.3))
    assert {width: count / 3000 for width, count in smallest.items()} == pytest.approx(
        {8: 0.7, 9: 0.1, 10: 0.1, 11: 0.1}, abs=0.03
    )


@pytest.mark.parametrize("sampling", WidthSampling)
def test_moved_widths_still_run_down_from_the_whole_network(sampling: WidthSampling) -> None:
    for step in draws(sampling, (8, 12, 16, 20, 24), off_grid=1.0, off_grid_smallest=1.0):
        assert (len(step), step[0]) == (4, 24)
        assert list(step) == sorted(step, reverse=True)
        assert 8 < step[-1] < step[0]


@pytest.mark.parametrize("head_dims", [tuple(range(4, 13)), (11, 12)], ids=["every width", "two neighbours"])
def test_where_nothing_can_move_no_number_is_drawn(head_dims: tuple[int, ...]) -> None:
    plan = WidthPlan(net=net(head_dims, 12), off_grid=1.0, off_grid_smallest=1.0)
    with_options, without = np.random.default_rng(0), np.random.default_rng(0)
    assert plan.draw(with_options) == WidthPlan(net=plan.net).draw(without)
    assert with_options.bit_generator.state == without.bit_generator.state


@pytest.mark.parametrize("name", ["off_grid", "off_grid_smallest"])
def test_what_is_no_probability_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} 1.5, allowed is 0 to 1"):
        draws(WidthSampling.PAPER, (8, 12), **{name: 1.5})
