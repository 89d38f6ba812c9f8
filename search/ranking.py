"""How well a score ranks networks, and whether differences are more than noise.

Every figure comes with an interval: a rank correlation over thirty networks, or the lead of one search over another on
three seeds, easily looks like a finding when it is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata, ttest_ind

LEVEL = 0.95
"""Confidence level of all intervals."""

RESAMPLES = 1000

_MIN_ITEMS = 3  # fewer have no ranking worth a number

FloatArray = NDArray[np.float64]
Items = NDArray[np.intp]
Statistic = Callable[[Items], FloatArray]
"""From resamples (r, n), rows of item indices, to their statistics (r,); NaN where one is undefined."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval at :data:`LEVEL`."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """True when the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Agreement of two rankings of the same ``n`` items; ``None`` where a ranking is constant or too short."""

    n: int
    kendall: Estimate | None
    spearman: Estimate | None


def kendall(x: ArrayLike, y: ArrayLike) -> float | None:
    """Kendall's tau-b, which accounts for ties; ``None`` when either side is constant or shorter than three.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    return _once(_kendall_of(*_paired(x, y)), len(np.asarray(x)))


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Spearman's rho (mean ranks for ties); ``None`` when either side is constant or shorter than three.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    return _once(_spearman_of(*_paired(x, y)), len(np.asarray(x)))


def rank_correlation(scores: ArrayLike, truth: ArrayLike, rng: np.random.Generator) -> RankCorrelation:
    """Both rank correlations of a score with the truth, with percentile bootstrap intervals over the items.

    Args:
        scores: (n,) what the search ranks by.
        truth: (n,) what it stands for, such as accuracies after training.
        rng: source of the resampling.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    x, y = _paired(scores, truth)
    return RankCorrelation(
        n=len(x),
        kendall=_bootstrap(_kendall_of(x, y), len(x), rng),
        spearman=_bootstrap(_spearman_of(x, y), len(x), rng),
    )


def correlation_gain(
    scores: ArrayLike, control: ArrayLike, truth: ArrayLike, rng: np.random.Generator
) -> Estimate | None:
    """How much better a score ranks than a control (such as the parameter count): difference of Kendall's tau-b.

    Both are measured on the same resampled items, as the correlations of two scores with one truth go together.
    ``None`` when a side is constant or too short.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    x, y = _paired(scores, truth)
    z, _ = _paired(control, truth)
    ours, theirs = _kendall_of(x, y), _kendall_of(z, y)
    return _bootstrap(lambda items: ours(items) - theirs(items), len(x), rng)


def paired_difference(first: ArrayLike, second: ArrayLike, rng: np.random.Generator) -> Estimate | None:
    """Mean of ``first - second`` over common items (images, seeds), with a bootstrap interval over the items.

    ``None`` for fewer than three items.

    Raises:
        ValueError: when the lengths differ or a value is not finite.
    """
    a, b = _paired(first, second)
    difference = a - b
    return _bootstrap(lambda items: difference[items].mean(axis=1), len(difference), rng)


def mean_difference(first: ArrayLike, second: ArrayLike) -> Estimate | None:
    """Difference of the means of two independent samples with Welch's interval.

    ``None`` below two values a side, and when neither side has any spread to judge by.

    Raises:
        ValueError: when a value is not finite.
    """
    a, b = _vector(first), _vector(second)
    if min(len(a), len(b)) < 2 or (np.ptp(a) == 0 and np.ptp(b) == 0):
        return None
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(LEVEL)
    return Estimate(float(a.mean() - b.mean()), float(interval.low), float(interval.high))


def difference_sentence(first: str, second: str, difference: Estimate | None) -> str:
    """Say whether ``first`` is ahead of ``second`` as far as the interval of ``first - second`` allows."""
    if difference is None:
        return f"{first} and {second} cannot be compared: too few values, or values without spread."
    if not difference.excludes_zero:
        return f"No clear difference between {first} and {second}: {difference} at {LEVEL:.0%} includes 0."
    ahead, behind = (first, second) if difference.value > 0 else (second, first)
    return f"{ahead} is ahead of {behind}: difference {difference} at {LEVEL:.0%}."


def _kendall_of(x: FloatArray, y: FloatArray) -> Statistic:
    """Tau-b of resamples.

    With the multiplicities w of the items it is (w P w) / sqrt((w X w) (w Y w)), where X and Y mark the pairs that x
    and y put in an order, and P holds 1 for pairs in the same order, -1 for pairs in opposite order.
    """
    sign_x, sign_y = (np.sign(values[:, None] - values[None, :]) for values in (x, y))
    agreement, ordered_x, ordered_y = sign_x * sign_y, np.abs(sign_x), np.abs(sign_y)

    def statistic(items: Items) -> FloatArray:
        weights = np.zeros(items.shape)
        np.add.at(weights, (np.arange(len(items))[:, None], items), 1)
        total, in_x, in_y = ((weights @ pairs * weights).sum(axis=1) for pairs in (agreement, ordered_x, ordered_y))
        return _ratio(total, np.sqrt(in_x * in_y))

    return statistic


def _spearman_of(x: FloatArray, y: FloatArray) -> Statistic:
    """Rho of resamples: the linear correlation of their mean ranks."""

    def statistic(items: Items) -> FloatArray:
        ranks_x, ranks_y = (rankdata(values[items], axis=1) for values in (x, y))
        ranks_x -= ranks_x.mean(axis=1, keepdims=True)
        ranks_y -= ranks_y.mean(axis=1, keepdims=True)
        spread = np.sqrt((ranks_x**2).sum(axis=1) * (ranks_y**2).sum(axis=1))
        return _ratio((ranks_x * ranks_y).sum(axis=1), spread)

    return statistic


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """The quotient, NaN where a constant ranking makes it 0 / 0."""
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator > 0)


def _once(statistic: Statistic, n: int) -> float | None:
    """The statistic of all items as they are; ``None`` where it is undefined."""
    if n < _MIN_ITEMS:
        return None
    value = float(statistic(np.arange(n)[None, :])[0])
    return None if np.isnan(value) else value


def _bootstrap(statistic: Statistic, n: int, rng: np.random.Generator) -> Estimate | None:
    """Percentile interval over resampled items; resamples for which the statistic is undefined are left out."""
    value = _once(statistic, n)
    if value is None:
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(statistic(rng.integers(n, size=(RESAMPLES, n))), [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def _paired(first: ArrayLike, second: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = _vector(first), _vector(second)
    if len(a) != len(b):
        raise ValueError(f"paired values: found {len(a)} and {len(b)}, allowed is equally many")
    return a, b


def _vector(values: ArrayLike) -> FloatArray:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ValueError(f"values: found shape {vector.shape}, allowed is one dimension of finite numbers")
    return vector
