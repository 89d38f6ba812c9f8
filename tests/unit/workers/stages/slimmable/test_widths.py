"""Which widths are measured, and which are offered."""

from __future__ import annotations

from itertools import pairwise

import pytest

from models.architecture import Architecture
from models.slimmable import Slimmable
from search.widths import MAX_BETWEEN, measured_widths
from workers.stages.slimmable.widths import judged_widths


def net(head_dim: int, *head_dims: int) -> Slimmable:
    largest = Architecture(
        embed_dim=2 * head_dim,
        depth=1,
        num_heads=(2,),
        mlp_ratio=(4.0,),
        head_dim=head_dim,
        img_size=8,
        patch_size=2,
        num_classes=10,
    )
    return Slimmable(largest=largest, head_dims=head_dims)


def test_all_widths_of_ordinary_heads_are_measured() -> None:
    assert measured_widths(net(64, 16, 32, 64)) == tuple(range(16, 65))


def test_of_wide_heads_the_trained_widths_and_an_even_choice_of_others_are_measured() -> None:
    measured = measured_widths(net(256, 8, 100, 256))
    assert {8, 100, 256} < set(measured)
    assert len(measured) == 3 + MAX_BETWEEN
    gaps = {above - below for below, above in pairwise(measured)}
    assert max(gaps) <= 5


def test_widths_that_were_trained_alone_have_none_between() -> None:
    assert measured_widths(net(64, 16, 32, 64), shared=False) == (16, 32, 64)


@pytest.mark.parametrize(("accuracy", "offered"), [(0.57, True), (0.5451, True), (0.5449, False)])
def test_a_width_is_offered_down_to_the_threshold_below_the_line(accuracy: float, offered: bool) -> None:
    # Halfway between 50 and 62 points the line is at 56.
    known = judged_widths(net(8, 4, 8), {4: 0.5, 6: accuracy, 8: 0.62}, max_dip=1.5)
    assert [width.interpolated for width in known] == [False, True, False]
    assert known[1].dip == pytest.approx(56 - 100 * accuracy)
    assert known[1].offered is offered


def test_the_line_leads_to_the_trained_neighbours_not_to_the_ends() -> None:
    known = judged_widths(net(8, 2, 4, 8), {2: 0.1, 3: 0.3, 4: 0.5, 6: 0.55, 8: 0.6}, max_dip=0.1)
    assert [width.dip for width in known] == [None, pytest.approx(0), None, pytest.approx(0), None]


def test_trained_widths_are_offered_whatever_they_are_worth() -> None:
    known = judged_widths(net(8, 4, 6, 8), {4: 0.9, 6: 0.1, 8: 0.9}, max_dip=0.0)
    assert all(width.offered and width.dip is None for width in known)


@pytest.mark.parametrize("accuracies", [{4: None, 6: None, 8: None}, {6: 0.5, 8: 0.5}])
def test_a_width_whose_worth_is_unknown_is_not_offered(accuracies: dict[int, float | None]) -> None:
    [width] = [width for width in judged_widths(net(8, 4, 8), accuracies, max_dip=100.0) if width.interpolated]
    assert (width.dip, width.offered) == (None, False)
