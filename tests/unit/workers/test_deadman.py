"""The dead-man by itself, with leases of a fraction of a second."""

from __future__ import annotations

import io
import threading
import time

import pytest

from workers.channel import Channel
from workers.deadman import BACKSTOP_AT, END_AT, SOFT_STOP_AT, DeadMan

LEASE_S = 0.4


class Watch:
    """When what happened, in seconds after the start."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.began_at = time.monotonic()
        self.soft = threading.Event()
        self.ended = threading.Event()
        self.soft_after_s = self.ended_after_s = 0.0
        self.backstops: list[float] = []
        self.deadman = DeadMan(lease_s, self._soft, self._end, self.backstops.append)

    def _soft(self) -> None:
        self.soft_after_s = time.monotonic() - self.began_at
        self.soft.set()

    def _end(self) -> None:
        self.ended_after_s = time.monotonic() - self.began_at
        self.ended.set()


def test_without_renewal_it_asks_first_and_then_ends() -> None:
    watch = Watch()
    assert watch.ended.wait(10)
    assert watch.soft_after_s >= SOFT_STOP_AT * LEASE_S
    assert watch.ended_after_s >= END_AT * LEASE_S
    assert watch.soft_after_s < watch.ended_after_s


def test_renewals_postpone_everything() -> None:
    watch = Watch()
    while time.monotonic() - watch.began_at < 3 * LEASE_S:
        watch.deadman.renew(60.0)
        time.sleep(0.01)
    assert not watch.soft.is_set()


def test_work_that_wakes_after_its_lease_ends_before_it_does_or_says_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was frozen: the work may run before the dead-man's own thread does."""
    watch, stream = Watch(lease_s=60.0), io.BytesIO()
    channel = Channel(stream)
    channel.guard(watch.deadman.check)
    assert channel.stop_reason is None
    assert not watch.ended.is_set()
    woken_at = time.monotonic() + END_AT * 60.0
    monkeypatch.setattr("workers.deadman.time.monotonic", lambda: woken_at)
    assert channel.stop_reason is None
    assert watch.ended.is_set()
    watch.ended.clear()
    channel.tell_alive()
    assert watch.ended.is_set()


def test_a_shorter_lease_than_thought_counts_at_once() -> None:
    """The supervisor tells what is left of the lease, which may be less than a whole one."""
    watch = Watch(lease_s=60.0)
    watch.deadman.renew(0.0)
    assert watch.ended.wait(10)


def test_the_backstop_is_set_anew_with_each_renewal_behind_the_end() -> None:
    watch = Watch(lease_s=100.0)
    watch.deadman.renew(50.0)
    assert watch.backstops == [pytest.approx(100 * BACKSTOP_AT), pytest.approx(50 - 100 * (1 - BACKSTOP_AT))]
    assert BACKSTOP_AT > END_AT
