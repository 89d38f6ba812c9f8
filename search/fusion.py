"""Several measures made one score by their ranks: the sum over measures of ``log(rank / N)``.

It is the non-linear ranking aggregation of AZ-NAS (Lee and Ham 2024), which ranks all candidates when all are known;
BWSS-TAS, by an author of MaskTAS, fuses consistency and reconstruction by ranks.

The logarithm weighs the worst ranks most, so a candidate that is bad by one measure is not saved by another.

A search needs the score of a candidate before the next one exists, and a score must never change.  So ranks are not
those among all candidates: each value is placed among ``N`` fixed reference values, from 1 for the worst of them to
``N`` for the best.  Between two of them the rank is interpolated.  Beyond the best it goes on growing, with the slope
of the outermost tenth of the reference, so that a search that has left the reference behind still sees progress.  Below
the worst it decays exponentially with the slope of the tenth at that end, and never reaches 0, whose logarithm is none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

_OUTERMOST = 0.1  # share of the reference whose slope is continued; the two outermost values alone would be a gamble


class RankScale:
    """``log(rank / N)`` of any value among ``N`` reference values; larger values rank higher.

    Continuous and increasing; 0 for the best of the reference when no other equals it. Equal reference values share
    the mean of their ranks. A reference of equal values alone has no scale: everything ranks alike.

    Args:
        reference: finite numbers, at least one.

    Raises:
        ValueError: when there are none or one is not finite.
    """

    def __init__(self, reference: Sequence[float]) -> None:
        if not reference or not all(map(math.isfinite, reference)):
            raise ValueError(f"reference: found {list(reference)}, allowed is at least one value, all finite")
        ordered = sorted(reference)
        self._count = len(ordered)
        self._values = sorted(set(ordered))
        self._ranks = [_mean_rank(ordered, value) for value in self._values]
        tenth = max(1, round(_OUTERMOST * self._count))
        if len(self._values) > 1:
            inner = bisect_left(self._values, ordered[min(tenth, self._count - 1)])
            self._low_slope = self._slope(0, max(inner, 1))
            inner = bisect_left(self._values, ordered[max(self._count - 1 - tenth, 0)])
            self._high_slope = self._slope(min(inner, len(self._values) - 2), len(self._values) - 1)
        else:
            self._low_slope = self._high_slope = 0.0

    def log_rank(self, value: float) -> float:
        """``log(rank / N)`` of a finite value."""
        values, ranks = self._values, self._ranks
        if value < values[0]:
            # The logarithm of ranks[0] * exp(-slope * distance / ranks[0]), which joins without a bend.
            return math.log(ranks[0] / self._count) - self._low_slope * (values[0] - value) / ranks[0]
        if value > values[-1]:
            return math.log((ranks[-1] + self._high_slope * (value - values[-1])) / self._count)
        i = bisect_left(values, value)
        if values[i] == value:
            return math.log(ranks[i] / self._count)
        share = (value - values[i - 1]) / (values[i] - values[i - 1])
        return math.log((ranks[i - 1] + share * (ranks[i] - ranks[i - 1])) / self._count)

    def _slope(self, first: int, last: int) -> float:
        return (self._ranks[last] - self._ranks[first]) / (self._values[last] - self._values[first])


class LogRankFusion:
    """The fused score of candidates, by the ranks of their measures among those of a reference.

    Args:
        names: the measures that are fused.
        reference: measures of the reference networks by name; those that lack one have no say in its ranks.
    """

    def __init__(self, names: Sequence[str], reference: Sequence[Mapping[str, float | None]]) -> None:
        self._scales: dict[str, RankScale | None] = {}
        for name in names:
            known = [value for row in reference if (value := row.get(name)) is not None]
            self._scales[name] = RankScale(known) if known else None

    def score(self, measures: Mapping[str, float | None]) -> float | None:
        """Sum of ``log(rank / N)``, larger is better; None when a measure is missing here or in all the reference."""
        total = 0.0
        for name, scale in self._scales.items():
            value = measures.get(name)
            if value is None or scale is None:
                return None
            total += scale.log_rank(value)
        return total


def _mean_rank(ordered: Sequence[float], value: float) -> float:
    """Rank of a value from 1, the mean of those that its equals share."""
    first = bisect_left(ordered, value)
    return first + (1 + ordered.count(value)) / 2
