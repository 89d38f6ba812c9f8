from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.architecture import Architecture
from search.cost import macs
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, search_start
from workers.stages.estimate import planned_work
from workers.stages.search_context import SearchContext

IMAGES = 1258  # of the digits, one epoch
VISIBLE = 0.5
TEACHER = Architecture(
    embed_dim=32,
    depth=1,
    num_heads=(2,),
    mlp_ratio=(2.0,),
    head_dim=16,
    img_size=8,
    patch_size=2,
    in_chans=1,
    num_classes=0,
)

Work = Callable[..., float]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """Multiply-accumulates of the supernet's stage, per image, with such options."""

    def of(**supernet: Any) -> float:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        start = search_start(merged(TINY, {"supernet": supernet}), folder)
        return planned_work(SearchContext(start, RecordingChannel()))["supernet"] / IMAGES

    return of


def test_further_students_cost_no_further_teacher(work: Work) -> None:
    taught = VISIBLE * macs(TEACHER)
    one, three = work(), work(students=3)
    assert three == pytest.approx(3 * (one - taught) + taught)
    assert work(distillation=False) == pytest.approx(one - taught)


def test_sandwich_costs_its_ends(work: Work, tmp_path: Path) -> None:
    space = SearchContext(search_start(TINY, tmp_path / "space"), RecordingChannel()).space
    ends = macs(space.largest()) + macs(space.smallest()) - 2 * macs(space.centre())
    assert work(sampling="sandwich") - work(students=3) == pytest.approx(3 * VISIBLE * ends)


def test_hidden_patches_cost_a_whole_teacher(work: Work) -> None:
    assert work(distill={"positions": "all"}) - work() == pytest.approx(macs(TEACHER))
    assert work(distill={"positions": "masked"}) - work() == pytest.approx(VISIBLE * macs(TEACHER))


def test_three_quarters_leave_a_quarter_of_the_teacher_out(work: Work) -> None:
    assert work() - work(distill={"layer": "three_quarter"}) == pytest.approx(VISIBLE * macs(TEACHER) / 4)


def test_crops_cost_two_products_a_channel(work: Work) -> None:
    assert work(crop_scale=[0.2, 1.0]) - work() == pytest.approx(2 * 8**3)


def test_decoder_counts_only_where_it_is_used(work: Work) -> None:
    alone = work(reconstruction=False)
    assert alone < work()
    assert work(reconstruction=False, distill={"positions": "masked"}) == work(distill={"positions": "masked"})
