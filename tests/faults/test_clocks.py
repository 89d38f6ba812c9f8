"""A worker whose wall clock jumps: leases follow the database's clock and monotonic ones, so nobody notices."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from service.db.models import JobState
from service.jobs.states import AttemptOutcome
from tests.faults.jumping_worker import OFFSET_FILE
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

DAY_S = 86_400.0


def set_clock(file: Path, offset_s: float) -> None:
    scratch = file.with_name("next")
    scratch.write_text(repr(offset_s))
    scratch.replace(file)


def wait_for_time(seconds: float) -> None:
    """Longer than a lease, so that one that is not renewed runs out."""
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > seconds, f"{seconds:g} s have passed", limit_s=seconds + 60)


@pytest.mark.parametrize("jumps", [(DAY_S, 0.0), (-DAY_S, 0.0), (3 * DAY_S, -3 * DAY_S)], ids=["ahead", "back", "both"])
def test_a_clock_that_jumps_costs_nothing(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jumps: tuple[float, float]
) -> None:
    offset, trace, gate = tmp_path / "offset", tmp_path / "trace", tmp_path / "gate"
    set_clock(offset, 0.0)
    monkeypatch.setenv(OFFSET_FILE, str(offset))
    stack.start_relay()
    stack.start_worker(module="tests.faults.jumping_worker", deaf_after_s=3.0)
    job_id = stack.enqueue(trace=str(trace), gate=str(gate), hold_at=6)
    stack.wait_for_checkpoint(job_id)
    for jump in jumps:
        set_clock(offset, jump)
        before = stack.job(job_id).heartbeat_at
        wait_for_time(1.5 * stack.settings.lease_s)
        assert stack.job(job_id).heartbeat_at != before, "the lease is renewed"
        worker = stack.worker("one")
        assert worker is not None, "the relay has not forgotten it"
        assert not worker.deaf
    gate.touch()
    stack.wait_for_state(job_id, JobState.SUCCEEDED)
    after = stack.enqueue()  # bells of a worker whose clock is wrong still count
    stack.wait_for_state(after, JobState.SUCCEEDED)
    for one in (job_id, after):
        assert [attempt.outcome for attempt in stack.attempts(one)] == [AttemptOutcome.SUCCEEDED]
    assert trace.read_text().splitlines() == [f"1 {step}" for step in range(10)]
