from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.ranking import (
    Estimate,
    correlation_gain,
    difference_sentence,
    kendall,
    mean_difference,
    paired_difference,
    rank_correlation,
    spearman,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tau_b(x: list[int], y: list[int]) -> float:
    """The textbook definition over pairs."""
    signs = [(np.sign(a - b), np.sign(c - d)) for (a, c), (b, d) in combinations(zip(x, y, strict=True), 2)]
    agreement = sum(a * b for a, b in signs)
    return float(agreement / np.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs)))


@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=12))
def test_kendall_is_tau_b(pairs: list[tuple[int, int]]) -> None:
    x, y = ([pair[i] for pair in pairs] for i in (0, 1))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert kendall(x, y) is None
    else:
        assert kendall(x, y) == pytest.approx(tau_b(x, y))


def test_spearman_is_the_correlation_of_mean_ranks() -> None:
    assert spearman([1, 2, 2, 9], [1, 4, 3, 80]) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 3, 2, 4])[0, 1])


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([], [])])
def test_constant_or_short_rankings_have_no_correlation(x: list[float], y: list[float]) -> None:
    assert kendall(x, y) is None
    assert spearman(x, y) is None
    found = rank_correlation(x, y, rng())
    assert (found.n, found.kendall, found.spearman) == (len(x), None, None)


def test_bootstrap_intervals_hold_the_estimate_and_narrow_with_more_items() -> None:
    widths = []
    for n in (20, 200):
        x = np.random.default_rng(1).normal(size=n)
        y = x + np.random.default_rng(2).normal(size=n)
        found = rank_correlation(x, y, rng())
        for estimate in (found.kendall, found.spearman):
            assert estimate is not None
            assert -1 <= estimate.low <= estimate.value <= estimate.high <= 1
            assert estimate.excludes_zero
        assert found.kendall is not None
        widths.append(found.kendall.high - found.kendall.low)
    assert widths[1] < widths[0] / 2


def test_bootstrap_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        found = rank_correlation(draw.normal(size=30), draw.normal(size=30), draw)
        assert found.kendall is not None
        covered += not found.kendall.excludes_zero
    assert covered >= 34  # 38 expected


def test_the_same_generator_gives_the_same_interval() -> None:
    x, y = [1.0, 2, 3, 4, 5], [2.0, 1, 4, 3, 5]
    assert rank_correlation(x, y, rng()) == rank_correlation(x, y, rng())


def test_gain_over_a_control_tells_a_better_score_from_an_equal_one() -> None:
    draw = np.random.default_rng(3)
    truth = draw.normal(size=60)
    good, poor = truth + 0.3 * draw.normal(size=60), truth + 3 * draw.normal(size=60)
    gain = correlation_gain(good, poor, truth, rng())
    assert gain is not None
    assert gain.low > 0
    none = correlation_gain(good, good, truth, rng())
    assert none == Estimate(0.0, 0.0, 0.0)
    assert correlation_gain(good, np.zeros(60), truth, rng()) is None


def test_pairing_sees_a_lead_that_the_spread_between_items_hides() -> None:
    draw = np.random.default_rng(4)
    items = draw.normal(size=30, scale=5)
    first, second = items + 0.2 + 0.1 * draw.normal(size=30), items
    paired, unpaired = paired_difference(first, second, rng()), mean_difference(first, second)
    assert paired is not None
    assert unpaired is not None
    assert paired.excludes_zero
    assert not unpaired.excludes_zero
    assert paired.value == pytest.approx(unpaired.value)


def test_welch_interval_matches_the_textbook() -> None:
    a, b = [20.4, 24.2, 15.4, 21.4, 20.2, 18.5, 21.5], [20.2, 16.9, 18.5, 17.3, 20.5]
    found = mean_difference(a, b)
    assert found is not None
    va, vb = np.var(a, ddof=1) / 7, np.var(b, ddof=1) / 5
    dof = (va + vb) ** 2 / (va**2 / 6 + vb**2 / 4)
    assert found.value == pytest.approx(np.mean(a) - np.mean(b))
    assert found.high - found.value == pytest.approx(2.2312 * np.sqrt(va + vb), rel=0.01)  # t quantile at dof
    assert 9.5 < dof < 10.2


@pytest.mark.parametrize(("first", "second"), [([1.0], [2.0, 3.0]), ([1.0, 1.0], [2.0, 2.0])])
def test_without_repeats_or_spread_no_difference_is_claimed(first: list[float], second: list[float]) -> None:
    assert mean_difference(first, second) is None
    assert "cannot be compared" in difference_sentence("evolution", "random", None)


def test_sentences_claim_a_lead_only_when_the_interval_excludes_zero() -> None:
    assert difference_sentence("evolution", "random", Estimate(0.02, -0.01, 0.05)) == (
        "No clear difference between evolution and random: 0.02 [-0.01, 0.05] at 95% includes 0."
    )
    assert difference_sentence("evolution", "random", Estimate(0.02, 0.01, 0.03)).startswith(
        "evolution is ahead of random"
    )
    assert difference_sentence("evolution", "random", Estimate(-0.02, -0.03, -0.01)).startswith("random is ahead of")


def test_values_that_cannot_be_paired_or_ranked_are_refused() -> None:
    with pytest.raises(ValueError, match="found 2 and 3"):
        kendall([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="finite numbers"):
        mean_difference([1.0, float("nan")], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"found shape \(1, 2\)"):
        spearman([[1, 2]], [1, 2])
