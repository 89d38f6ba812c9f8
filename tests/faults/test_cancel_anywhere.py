"""Cancel at thirty random moments: the job is cancelled and none of its processes lives within ten seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select

from service.db.models import Candidate, JobState
from service.jobs import transitions
from service.settings import Settings
from tests.faults.stack import Stack, processes_below
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

MOMENTS = 30
LIMIT_S = 10.0


@pytest.fixture
def stack(settings: Settings, engine: Engine) -> Iterator[Stack]:
    """With the times that come with the service: a look each second, five seconds of grace."""
    usual = Settings(_env_file=None)
    names = ("lease_s", "heartbeat_s", "desired_poll_s", "stop_grace_s")
    changes = {name: getattr(usual, name) for name in names}
    stack = Stack(settings.model_copy(update=changes), engine)
    with contextlib.closing(stack):
        yield stack


def test_cancel_at_thirty_random_moments(stack: Stack, tmp_path: Path) -> None:
    """Queued, starting, at work, in a checkpoint, done: and every sixth does not listen."""
    stack.start_relay()
    worker = stack.start_worker()
    rng = Random(0)
    ends: list[tuple[JobState, float]] = []
    for number in range(MOMENTS):
        deaf = number % 6 == 5
        spec = {"fault": "ignore_stop", "fault_at": 1} if deaf else {"hold_at": rng.randrange(1, 10)}
        job_id = stack.enqueue(gate=str(tmp_path / "never"), checkpoint_every=1, **spec)
        time.sleep(rng.uniform(0, 2.5))  # the moment is the point
        asked_at = time.monotonic()
        kept = candidates(stack, job_id)
        stack.act(transitions.request_cancel, job_id)
        job = stack.wait_for_state(job_id, JobState.CANCELLED, limit_s=LIMIT_S)
        wait_until(lambda: not processes_below(worker.pid), "no process is left", LIMIT_S)
        ends.append((JobState(job.state), time.monotonic() - asked_at))
        assert candidates(stack, job_id) >= kept  # the best so far is kept
        assert all(attempt.outcome is not None for attempt in stack.attempts(job_id))
    assert len(ends) == MOMENTS
    assert max(seconds for _, seconds in ends) < LIMIT_S
    print(f"slowest {max(seconds for _, seconds in ends):.1f} s")


def candidates(stack: Stack, job_id: UUID) -> int:
    with stack.sessions() as session:
        query = select(func.count()).select_from(Candidate).where(Candidate.job_id == job_id)
        return session.execute(query).scalar_one()
