import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.fusion import LogRankFusion, RankScale

# A grid in steps of 1/8: ties are common, and differences stay far above rounding.
values = st.integers(-800, 800).map(lambda n: n / 8)
references = st.lists(values, min_size=1, max_size=40)
spread_references = st.lists(values, min_size=2, max_size=40).filter(lambda reference: len(set(reference)) > 1)


@given(reference=st.lists(values, min_size=1, max_size=40, unique=True))
def test_reference_values_have_their_own_ranks(reference: list[float]) -> None:
    scale, count = RankScale(reference), len(reference)
    found = [scale.log_rank(value) for value in sorted(reference)]
    assert found == pytest.approx([math.log(rank / count) for rank in range(1, count + 1)])


@given(reference=spread_references, pair=st.tuples(values, values))
def test_larger_values_rank_higher(reference: list[float], pair: tuple[float, float]) -> None:
    low, high = sorted(pair)
    scale = RankScale(reference)
    assert scale.log_rank(low) < scale.log_rank(high) or low == high


@given(reference=references, value=values)
def test_ranks_have_no_jumps(reference: list[float], value: float) -> None:
    scale = RankScale(reference)
    step = 1e-9
    assert scale.log_rank(value + step) - scale.log_rank(value - step) < 1e-5


@given(reference=references, value=values, factor=st.sampled_from([0.25, 8.0]), shift=values)
def test_neither_scale_nor_origin_of_a_measure_matters(
    reference: list[float], value: float, factor: float, shift: float
) -> None:
    changed = RankScale([factor * v + shift for v in reference])
    assert changed.log_rank(factor * value + shift) == pytest.approx(RankScale(reference).log_rank(value))


@given(reference=references, order=st.randoms(use_true_random=False))
def test_order_of_the_reference_does_not_matter(reference: list[float], order: object) -> None:
    shuffled = list(reference)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert RankScale(shuffled).log_rank(0.3) == RankScale(reference).log_rank(0.3)


@given(reference=spread_references)
def test_ranks_grow_linearly_beyond_the_best_and_decay_exponentially_below_the_worst(reference: list[float]) -> None:
    scale = RankScale(reference)
    worst, best = min(reference), max(reference)
    above = [math.exp(scale.log_rank(best + distance)) for distance in (0.0, 1.0, 2.0)]
    below = [scale.log_rank(worst - distance) for distance in (0.0, 1.0, 2.0)]
    for first, second, third in (above, below):
        assert third - second == pytest.approx(second - first)
        assert second != first


def test_slopes_are_those_of_the_outermost_tenth() -> None:
    reference = [10.0 * i for i in range(30)]  # ranks rise by 0.1 for 1.0 ...
    reference[0], reference[29] = -70.0, 360.0  # ... and over the outer 3 by 3 for 100
    scale = RankScale(reference)
    assert math.exp(scale.log_rank(460.0)) == pytest.approx(33 / 30)
    assert scale.log_rank(-170.0) == pytest.approx(math.log(1 / 30) - 3)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    scale = RankScale([1.0, 2.0, 2.0, 3.0])
    assert scale.log_rank(2.0) == pytest.approx(math.log(2.5 / 4))


def test_a_reference_without_spread_ranks_everything_alike() -> None:
    scale = RankScale([5.0, 5.0])
    assert scale.log_rank(4.0) == scale.log_rank(5.0) == scale.log_rank(6.0)


@pytest.mark.parametrize("reference", [[], [1.0, math.nan]])
def test_references_that_are_none_are_refused(reference: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, all finite"):
        RankScale(reference)


def test_fusion_of_the_reference_itself_follows_the_published_rule() -> None:
    draws = np.random.default_rng(0).normal(size=(20, 2))
    rows = [{"a": float(a), "b": float(b), "c": 0.0} for a, b in draws]
    ranks = draws.argsort(axis=0).argsort(axis=0) + 1
    expected = np.log(ranks / 20).sum(axis=1)
    fusion = LogRankFusion(("a", "b"), rows)
    assert [fusion.score(row) for row in rows] == pytest.approx(expected.tolist())


def test_what_lacks_a_measure_has_no_fused_score() -> None:
    fusion = LogRankFusion(("a", "b"), [{"a": 1.0, "b": None}, {"a": 2.0, "b": 1.0}])
    assert fusion.score({"a": 1.0, "b": None}) is None
    assert fusion.score({"a": 1.0}) is None
    assert fusion.score({"a": 2.0, "b": 1.0}) == pytest.approx(0.0)
    assert LogRankFusion(("b",), [{"b": None}]).score({"b": 1.0}) is None
