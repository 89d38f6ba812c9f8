from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from workers.latency.measure import Latency, Pass, Timing, levelled, measure, percentile_ns


class Machine:
    """A clock that only passes move: each takes the next of its times, and the last one over and over."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def pass_of(self, name: str, times: list[int]) -> Pass:
        coming: Iterator[int] = iter(times)

        def run() -> None:
            self.now += next(coming, times[-1])
            self.log.append(name)

        return run

    def clock(self) -> int:
        return self.now


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(("percentile", "expected"), [(50, 5), (90, 9), (99, 10), (1, 1), (10, 1), (11, 2)])
def test_a_percentile_is_a_time_that_was_taken(percentile: int, expected: int) -> None:
    assert percentile_ns([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percentile) == expected


def test_the_percentile_of_the_timed_passes_counts_with_their_spread() -> None:
    machine = Machine()
    run = machine.pass_of("a", [100, 100, 10, 20, 30, 40, 1000])
    [found] = measure([run], Timing(percentile=50, warmup_runs=2, runs=5), rng(), clock=machine.clock)
    assert (found.ns, found.low_ns, found.high_ns, found.runs, found.warmup_runs) == (30, 20, 40, 5, 2)
    assert found.outliers == 1
    assert found.steady


def test_passes_that_grow_faster_are_warmed_up_until_they_are_steady() -> None:
    machine = Machine()
    [found] = measure(
        [machine.pass_of("a", [800, 400, 200, 100])], Timing(warmup_runs=2, runs=3), rng(), clock=machine.clock
    )
    assert (found.ns, found.warmup_runs, found.steady) == (100, 5, True)


def test_passes_that_never_become_steady_are_timed_and_told() -> None:
    machine = Machine()
    swinging = [100, 200] * 20
    [found] = measure([machine.pass_of("a", swinging)], Timing(warmup_runs=2, runs=2), rng(), clock=machine.clock)
    assert (found.warmup_runs, found.steady) == (16, False)


def test_networks_take_turns_in_rounds_of_changing_order() -> None:
    machine = Machine()
    passes = [machine.pass_of(name, [1]) for name in "abc"]
    measure(passes, Timing(warmup_runs=0, runs=20), rng(), clock=machine.clock)
    rounds = ["".join(machine.log[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) > 1


def test_a_drift_of_the_machine_touches_all_networks_alike() -> None:
    machine = Machine()
    slower = [100 + 10 * i for i in range(20)]  # with each pass of its own
    equal = [machine.pass_of(name, slower) for name in "ab"]
    first, second = measure(equal, Timing(warmup_runs=0, runs=20), rng(), clock=machine.clock)
    assert first.ns == second.ns


def test_a_hopelessly_slow_network_is_not_run_again() -> None:
    machine = Machine()
    passes = [machine.pass_of("slow", [900, 500]), machine.pass_of("fast", [10])]
    slow, fast = measure(passes, Timing(warmup_runs=3, runs=4), rng(), hopeless_ns=499, clock=machine.clock)
    assert (slow.ns, slow.runs, slow.warmup_runs, slow.steady) == (500, 1, 2, False)
    assert (fast.ns, fast.runs) == (10, 4)
    assert machine.log.count("slow") == 2


def test_a_slow_first_pass_alone_is_not_hopeless() -> None:
    machine = Machine()
    [found] = measure(
        [machine.pass_of("a", [900, 10])], Timing(warmup_runs=3, runs=4), rng(), hopeless_ns=500, clock=machine.clock
    )
    assert (found.ns, found.runs) == (10, 4)


@pytest.mark.parametrize("wrong", [{"percentile": 0}, {"percentile": 100}, {"runs": 0}, {"warmup_runs": -1}])
def test_timings_that_time_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="percentile of 1 to 99"):
        Timing(**wrong)


def latency_of(ns: int, anchor_ns: int | None) -> Latency:
    return Latency(ns, ns, ns, runs=1, warmup_runs=1, steady=True, outliers=0, anchor_ns=anchor_ns)


def test_networks_of_slower_minutes_are_levelled_by_their_anchor() -> None:
    quiet, busy = [latency_of(200, 100), latency_of(300, 100), latency_of(100, 100)], [latency_of(300, 150)]
    assert levelled([*quiet, *busy]) == [200, 300, 100, 200]


def test_networks_without_an_anchor_cannot_be_levelled() -> None:
    with pytest.raises(ValueError, match="1 of 2 networks"):
        levelled([latency_of(200, 100), latency_of(200, None)])
