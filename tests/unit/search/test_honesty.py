from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.honesty import (
    Verdict,
    baseline_check,
    holdout_check,
    indistinguishable,
    inversion_check,
    ranking_checks,
    spread,
    spread_check,
)
from search.ranking import Estimate

IMAGES = 400


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def table(rng: np.random.Generator, effects: list[float], noise: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Scores with a common difficulty of each image, an effect of each network, and noise of both together."""
    difficulty = rng.normal(size=IMAGES)
    return np.array(effects)[:, None] + difficulty + noise * rng.normal(size=(len(effects), IMAGES))


def test_differences_of_networks_are_told_from_those_of_images(rng: np.random.Generator) -> None:
    found = spread(table(rng, [0.0, 0.1, 0.2, 0.3], noise=0.2))
    assert found is not None
    assert found.reliability > 0.95
    assert found.noise == pytest.approx(0.2 * (2 / IMAGES) ** 0.5, rel=0.15)
    assert spread_check(found, 0, 3).verdict is Verdict.PASSED


def test_an_order_that_other_images_would_change_is_noise(rng: np.random.Generator) -> None:
    found = spread(table(rng, [0.0] * 8, noise=1.0))
    assert found is not None
    assert found.reliability < 0.8
    assert spread_check(found, 7, 7).verdict is Verdict.FAILED


def test_reliability_is_what_a_second_set_of_images_repeats(rng: np.random.Generator) -> None:
    effects = list(rng.normal(size=300) * 0.05)
    first, second = table(rng, effects, 1.0), table(rng, effects, 1.0)
    found = spread(first)
    assert found is not None
    repeated = np.corrcoef(first.mean(axis=1), second.mean(axis=1))[0, 1]
    assert found.reliability == pytest.approx(repeated, abs=0.12)


@pytest.mark.parametrize("shape", [(1, 10), (5, 1)])
def test_one_network_or_image_has_no_spread(shape: tuple[int, int]) -> None:
    assert spread(np.ones(shape)) is None


def test_networks_that_score_alike_have_no_spread() -> None:
    assert spread(np.ones((3, 10))) is None
    assert spread_check(None, 0, 0).verdict is Verdict.UNDECIDED


def test_networks_within_the_noise_are_counted(rng: np.random.Generator) -> None:
    best, close, far = table(rng, [0.0, 0.0, -1.0], noise=0.1)
    assert indistinguishable(best, [close, far], rng) == 1


@pytest.mark.parametrize(
    ("lead", "difference", "verdict"),
    [
        (None, None, Verdict.UNDECIDED),
        (-0.1, Estimate(-0.1, -0.2, 0.1), Verdict.FAILED),
        (0.0, None, Verdict.FAILED),
        (0.1, None, Verdict.UNDECIDED),
        (0.1, Estimate(0.1, -0.1, 0.3), Verdict.FAILED),
        (0.1, Estimate(0.1, 0.05, 0.15), Verdict.PASSED),
    ],
)
def test_a_lead_counts_when_noise_cannot_explain_it(
    lead: float | None, difference: Estimate | None, verdict: Verdict
) -> None:
    assert baseline_check("evolution", 100, lead, difference).verdict is verdict


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(0.5, Verdict.PASSED), (-0.5, Verdict.FAILED), (0.0, Verdict.UNDECIDED)]
)
def test_a_largest_network_below_the_middle_one_is_an_inversion(
    ahead: float, verdict: Verdict, rng: np.random.Generator
) -> None:
    largest, middle = table(rng, [ahead, 0.0], noise=1.0)
    assert inversion_check(largest, middle, rng).verdict is verdict


def test_a_score_without_values_of_images_leaves_checks_undecided(rng: np.random.Generator) -> None:
    assert inversion_check(None, None, rng).verdict is Verdict.UNDECIDED


def judged(kendall: list[float] | None, gain: list[float] | None) -> dict[str, Any]:
    def estimate(values: list[float] | None) -> dict[str, float] | None:
        return None if values is None else dict(zip(("value", "low", "high"), values, strict=True))

    row = {"name": "consistency", "kendall": estimate(kendall), "gain_over_params": estimate(gain)}
    other = {"name": "params", "kendall": None, "gain_over_params": None}
    return {"metric": "consistency", "networks": 32, "truth": "probe", "measures": [other, row]}


@pytest.mark.parametrize(
    ("kendall", "gain", "verdicts"),
    [
        ([0.5, 0.3, 0.7], [0.2, 0.1, 0.3], (Verdict.PASSED, Verdict.PASSED)),
        ([0.5, 0.3, 0.7], [0.1, -0.1, 0.3], (Verdict.PASSED, Verdict.FAILED)),
        ([0.1, -0.3, 0.5], [-0.4, -0.6, -0.2], (Verdict.FAILED, Verdict.FAILED)),
        ([0.5, 0.3, 0.7], None, (Verdict.PASSED, Verdict.UNDECIDED)),
        (None, None, (Verdict.UNDECIDED, Verdict.UNDECIDED)),
    ],
)
def test_a_score_that_does_not_beat_its_controls_is_reported_so(
    kendall: list[float] | None, gain: list[float] | None, verdicts: tuple[Verdict, Verdict]
) -> None:
    assert tuple(check.verdict for check in ranking_checks(judged(kendall, gain))) == verdicts


def test_without_labels_the_ranking_is_undecided() -> None:
    assert [check.verdict for check in ranking_checks(None)] == [Verdict.UNDECIDED] * 2


def test_the_holdout_is_read_for_one_network() -> None:
    assert holdout_check({"images": 359}).data == {"images": 359, "networks": 1}
    assert holdout_check(None).verdict is Verdict.UNDECIDED
