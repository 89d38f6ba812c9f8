"""How long forward passes take: warmed up until they are steady, then timed in turns.

Passes of several networks are timed in rounds, each round in an order of its own: a machine that grows slower or
faster meanwhile (heat, other programs) does so for all of them alike.  One figure of the timed passes counts, a
percentile, and their spread is told with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

Pass = Callable[[], object]
"""One forward pass; returns when its result is there."""

Clock = Callable[[], int]
"""Nanoseconds of a clock that never goes back."""

_STEADY = 0.05
"""Two halves of the last passes whose medians differ by at most this share are steady."""

_MOST_WARM_UPS = 8
"""Warming up ends, steady or not, after so many times the passes that were asked for."""

_TUKEY = 1.5
"""Passes above the upper quartile by more than so many quartile distances are outliers (Tukey 1977)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a pass is timed.

    Attributes:
        percentile: which of the timed passes counts, 1 to 99; 50 is the median.
        warmup_runs: passes before those that are timed, at least.
        runs: timed passes.

    Raises:
        ValueError: for numbers with which nothing can be timed.
    """

    percentile: int = 50
    warmup_runs: int = 5
    runs: int = 30

    def __post_init__(self) -> None:
        if not 1 <= self.percentile <= 99 or self.warmup_runs < 0 or self.runs < 1:
            raise ValueError(f"a percentile of 1 to 99, runs above 0 and warm-ups of 0 or more, found {self}")


@dataclass(frozen=True, slots=True)
class Latency:
    """What one network took.

    Attributes:
        ns: the percentile that was asked for, in nanoseconds; at least 1.
        low_ns, high_ns: lower and upper quartile of the timed passes.
        runs: timed passes.
        warmup_runs: passes before them.
        steady: whether the passes were steady when timing began.
        outliers: passes far above the others; they count like all.
        anchor_ns: what the network that every group is measured beside took in the same rounds; None: no such network.
    """

    ns: int
    low_ns: int
    high_ns: int
    runs: int
    warmup_runs: int
    steady: bool
    outliers: int
    anchor_ns: int | None = None

    @property
    def ms(self) -> float:
        """The percentile in milliseconds."""
        return self.ns / 1e6


def measure(
    passes: Sequence[Pass],
    timing: Timing,
    rng: np.random.Generator,
    *,
    poll: Callable[[], None] = lambda: None,
    hopeless_ns: float = math.inf,
    clock: Clock = time.perf_counter_ns,
) -> list[Latency]:
    """Time forward passes in turns.

    Args:
        passes: one of each network.
        timing: how often, and what counts.
        rng: of the order within each round.
        poll: called between passes; may raise to stop.
        hopeless_ns: networks whose first two passes both took longer are not run again; the second pass counts.
        clock: of the times.
    """
    warmed = [_warm_up(run, timing, poll, hopeless_ns, clock) for run in passes]
    taken = [[warm.times[-1]] if warm.hopeless else [] for warm in warmed]
    going_on = [i for i, warm in enumerate(warmed) if not warm.hopeless]
    for _ in range(timing.runs):
        for i in rng.permutation(going_on):
            poll()
            taken[i].append(_timed(passes[i], clock))
    return [_latency(times, timing, warm) for times, warm in zip(taken, warmed, strict=True)]


def levelled(taken: Sequence[Latency]) -> list[int]:
    """Nanoseconds as if all had been measured at one time.

    A machine that others share is at times slower by a third for minutes, and all networks are so alike. So what a
    network took is related to its anchor, and the median of what the anchor took stands for the machine.

    Args:
        taken: networks that were measured beside one anchor.

    Raises:
        ValueError: one was measured without an anchor.
    """
    anchors = [latency.anchor_ns for latency in taken]
    known = [anchor for anchor in anchors if anchor is not None]
    if len(known) < len(anchors):
        raise ValueError(f"{len(anchors) - len(known)} of {len(anchors)} networks were measured without an anchor")
    usual = median(known) if known else 0
    return [max(1, round(latency.ns * usual / anchor)) for latency, anchor in zip(taken, known, strict=True)]


def percentile_ns(times: Sequence[int], percentile: int) -> int:
    """The smallest of the times that at least ``percentile`` of a hundred of them do not exceed (nearest rank)."""
    ordered = sorted(times)
    return ordered[-(-percentile * len(ordered) // 100) - 1]


@dataclass(frozen=True, slots=True)
class _Warmed:
    times: Sequence[int]
    steady: bool
    hopeless: bool = False


def _warm_up(run: Pass, timing: Timing, poll: Callable[[], None], hopeless_ns: float, clock: Clock) -> _Warmed:
    least = timing.warmup_runs
    times: list[int] = []
    while len(times) < least or (not _is_steady(times, least) and len(times) < _MOST_WARM_UPS * least):
        poll()
        times.append(_timed(run, clock))
        # The first pass of a network takes longer than any other, and says little.
        if len(times) == 2 and min(times) > hopeless_ns:
            return _Warmed(times, steady=False, hopeless=True)
    return _Warmed(times, _is_steady(times, least))


def _is_steady(times: Sequence[int], window: int) -> bool:
    half = window // 2
    if half == 0:
        return True
    before, last = median(times[-2 * half : -half]), median(times[-half:])
    return abs(last - before) <= _STEADY * max(last, before)


def _timed(run: Pass, clock: Clock) -> int:
    began = clock()
    run()
    return clock() - began


def _latency(times: Sequence[int], timing: Timing, warm: _Warmed) -> Latency:
    low, high = percentile_ns(times, 25), percentile_ns(times, 75)
    fence = high + _TUKEY * (high - low)
    return Latency(
        ns=max(1, percentile_ns(times, timing.percentile)),
        low_ns=low,
        high_ns=high,
        runs=len(times),
        warmup_runs=len(warm.times),
        steady=warm.steady,
        outliers=sum(taken > fence for taken in times),
    )
