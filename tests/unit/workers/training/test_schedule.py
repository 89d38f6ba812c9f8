from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from workers.training.schedule import BatchOrder, WarmupCosine


def test_rate_rises_linearly_and_falls_to_zero() -> None:
    schedule = WarmupCosine(peak=1.0, warmup_steps=4, total_steps=20)
    rates = [schedule.rate(step) for step in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[12] == pytest.approx(0.5)
    assert rates[20] == pytest.approx(0.0)
    assert all(later <= earlier for earlier, later in pairwise(rates[4:]))


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert WarmupCosine.of_share(0.5, 0.0, 10).rate(0) == 0.5


def test_cosine_ends_at_the_floor() -> None:
    schedule = WarmupCosine.of_share(1.0, 0.1, 20, floor=0.2)
    assert [schedule.rate(step) for step in (0, 1, 2, 11, 20)] == pytest.approx([0.5, 1.0, 1.0, 0.6, 0.2])


def test_slow_steps_divide_the_rate_and_nothing_after_them() -> None:
    plain = WarmupCosine(1.0, 4, 20, floor=0.1)
    slow = WarmupCosine(1.0, 4, 20, floor=0.1, slow_steps=6, slow_factor=2)
    assert [slow.rate(step) / plain.rate(step) for step in range(21)] == [0.5] * 6 + [1.0] * 15


def test_every_epoch_is_a_fresh_permutation() -> None:
    order = BatchOrder(images=12, batch_size=4, seed=0, stage=("x",))
    epochs = [np.concatenate([order.positions(3 * epoch + i) for i in range(3)]) for epoch in range(3)]
    assert all(sorted(epoch.tolist()) == list(range(12)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])


def test_what_fills_no_batch_changes_from_epoch_to_epoch() -> None:
    order = BatchOrder(images=10, batch_size=4, seed=0, stage=("x",))
    assert order.steps_per_epoch == 2
    left_out = [
        set(range(10)) - set(np.concatenate([order.positions(2 * e), order.positions(2 * e + 1)])) for e in range(4)
    ]
    assert all(len(images) == 2 for images in left_out)
    assert len({frozenset(images) for images in left_out}) > 1


def test_order_depends_on_the_step_alone() -> None:
    order = BatchOrder(images=50, batch_size=8, seed=3, stage=("x",))
    late = order.positions(40)
    for step in (0, 7, 39):
        order.positions(step)
    assert np.array_equal(order.positions(40), late)
    assert not np.array_equal(BatchOrder(50, 8, 4, ("x",)).positions(40), late)
    assert not np.array_equal(BatchOrder(50, 8, 3, ("y",)).positions(40), late)


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_that_cannot_be_filled_is_refused(batch_size: int) -> None:
    with pytest.raises(ValueError, match="allowed is 1 to the 10 images"):
        BatchOrder(images=10, batch_size=batch_size, seed=0, stage=("x",))


def test_repeats_fill_each_batch_with_copies_that_are_no_neighbours() -> None:
    order = BatchOrder(images=60, batch_size=8, seed=0, stage=("x",), repeats=3)
    assert order.steps_per_epoch == 7
    seen = []
    for step in range(7):
        positions = order.positions(step).tolist()
        assert positions == positions[:3] * 2 + positions[:2]
        seen += positions[:3]
    assert len(set(seen)) == 21


@pytest.mark.parametrize("repeats", [0, 5])
def test_more_copies_than_a_batch_holds_are_refused(repeats: int) -> None:
    with pytest.raises(ValueError, match="allowed is 1 to the batch_size 4"):
        BatchOrder(images=10, batch_size=4, seed=0, stage=("x",), repeats=repeats)
