from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.racing import MIN_IMAGES, Race

N = 512


def values(seed: int, lead: float = 0.0, noise: float = 0.1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of a candidate on each image: what all have in common, its own noise, and its lead."""
    shared, own = np.random.default_rng(0).normal(size=N), np.random.default_rng(seed).normal(size=N) * noise
    return shared + own + lead


def race(error: float = 0.01, tests: int = 100) -> Race:
    return Race(values(1), error=error, tests=tests)


def test_a_candidate_that_is_far_behind_on_the_same_images_is_out_early() -> None:
    far = values(2, lead=-0.2)
    assert race().is_lost(far[:64])
    # The images differ more than the candidates do: only the pairing shows it.
    assert far[:64].std() > 3 * 0.2


@pytest.mark.parametrize("lead", [0.0, 0.2])
def test_a_candidate_that_keeps_up_or_leads_stays(lead: float) -> None:
    own = values(2, lead)
    assert not any(race().is_lost(own[:n]) for n in range(0, N, 32))


def test_nobody_is_out_before_there_is_a_sample_or_after_all_was_seen() -> None:
    far = values(2, lead=-5.0)
    assert not race().is_lost(far[: MIN_IMAGES - 1])
    assert race().is_lost(far[:MIN_IMAGES])
    assert not race().is_lost(far)


def test_more_tests_and_a_smaller_error_ask_for_more_evidence() -> None:
    behind = values(2, lead=-0.05)
    lost_after = [
        next((n for n in range(MIN_IMAGES, N) if one.is_lost(behind[:n])), N)
        for one in (race(0.5, 1), race(0.01, 1), race(0.01, 100_000))
    ]
    assert lost_after == sorted(lost_after)
    assert lost_after[0] < lost_after[-1]


def test_equal_candidates_are_dropped_wrongly_no_more_often_than_stated() -> None:
    # Each is as good as its rival on all images together, up to rounding, and a little better.
    searches, error, wrong = 400, 0.2, 0
    rng = np.random.default_rng(3)
    for _ in range(searches):
        rival, own = rng.normal(size=(2, N))
        own += rival.mean() - own.mean() + 1e-9
        one = Race(rival, error=error, tests=N // 64 - 1)
        wrong += any(one.is_lost(own[:n]) for n in range(64, N, 64))
    assert wrong / searches < error


def test_values_that_are_not_finite_do_not_lose() -> None:
    assert not race().is_lost(np.full(64, np.nan))


def test_a_candidate_that_is_worse_by_the_same_on_every_image_is_out() -> None:
    assert race().is_lost(values(1)[:64] - 1)
    assert not race().is_lost(values(1)[:64])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"error": 0.0}, "error"), ({"error": 1.0}, "error"), ({"tests": 0}, "tests"), ({"rival": [np.inf]}, "rival")],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Race(**{"rival": [0.0, 1.0], "error": 0.1, "tests": 1, **changes})


def test_more_values_than_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 512"):
        race().is_lost(np.zeros(N + 1))
