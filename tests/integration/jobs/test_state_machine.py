"""Any order of what users, owners, old owners and the reaper may do to a job leaves its rows consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory
from service.db.models import TERMINAL_STATES, Attempt, Desired, Job, JobEvent, JobState
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.states import AttemptOutcome
from service.jobs.values import Claim, Finished, Held, Lost
from tests.jobs import new_job

ERROR = {"code": "worker_lost", "detail": "", "retryable": True}
FINISH: dict[str, Callable[[Session, Claim], Finished | Lost]] = {
    "succeeded": lambda s, c: transitions.finish_succeeded(s, c.job_id, c.fence, result={}),
    "stopped": lambda s, c: transitions.finish_stopped(s, c.job_id, c.fence),
    "failed": lambda s, c: transitions.finish_failed(s, c.job_id, c.fence, error=ERROR, retryable=True, backoff_s=0),
    "broken": lambda s, c: transitions.finish_failed(s, c.job_id, c.fence, error=ERROR, retryable=False, backoff_s=0),
}
ACTIONS = [transitions.request_cancel, transitions.request_pause, transitions.resume, transitions.retry]


@dataclass
class Owner:
    """Somebody who claimed the job once, and may still believe that it is theirs."""

    claim: Claim
    finished: Finished | None = None


class JobMachine(RuleBasedStateMachine):
    sessions: sessionmaker[Session]

    @initialize()
    def begin(self) -> None:
        self.owners: list[Owner] = []
        self.fence = 0
        with self.session() as session:
            session.execute(text("TRUNCATE job CASCADE"))
            self.job_id = transitions.enqueue(session, new_job(max_failures=2)).id

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.sessions.begin() as session:
            yield session

    @property
    def job(self) -> Job:
        with self.session() as session:
            return session.get_one(Job, self.job_id)

    def is_current(self, owner: Owner) -> bool:
        job = self.job
        return job.state == JobState.RUNNING and job.fence == owner.claim.fence

    @rule()
    def claim(self) -> None:
        before = self.job
        with self.session() as session:
            claim = transitions.claim_next(session, ["cpu"], "w", 60)
        assert (claim is not None) == (before.state == JobState.QUEUED)
        if claim is not None:
            assert claim.fence == before.fence + 1
            self.owners.append(Owner(claim))

    @rule(action=st.sampled_from(ACTIONS))
    def act(self, action: Callable[[Session, Any], Any]) -> None:
        before = self.job
        with self.session() as session:
            action(session, self.job_id)
        if before.state == JobState.RUNNING:
            assert self.job.state == JobState.RUNNING

    @rule()
    def reap(self) -> None:
        before = self.job
        with self.session() as session:
            session.execute(
                update(Job).where(Job.state == JobState.RUNNING).values(lease_until=func.now() - timedelta(seconds=1))
            )
        with self.session() as session:
            reaped = transitions.reap_expired(session, backoff_s=0)
        assert len(reaped) == (before.state == JobState.RUNNING)

    @rule(data=st.data(), how=st.sampled_from(sorted(FINISH)))
    def finish(self, data: st.DataObject, how: str) -> None:
        """By any owner that ever was, the current one or a ghost, once or again."""
        if not self.owners:
            return
        owner = data.draw(st.sampled_from(self.owners))
        current, before = self.is_current(owner), self.job
        with self.session() as session:
            answer = FINISH[how](session, owner.claim)
        if current:
            assert isinstance(answer, Finished)
            owner.finished = answer
            return
        assert self.job.revision == before.revision
        if owner.finished is None:
            assert answer == Lost()
        else:
            assert isinstance(answer, Finished)
            assert answer.outcome == owner.finished.outcome

    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        if not self.owners:
            return
        owner = data.draw(st.sampled_from(self.owners))
        current = self.is_current(owner)
        with self.session() as session:
            answer = transitions.heartbeat(session, self.job_id, owner.claim.fence, 60)
        assert isinstance(answer, Held if current else Lost)

    @invariant()
    def fence_never_goes_back(self) -> None:
        fence = self.job.fence
        assert fence >= self.fence
        self.fence = fence

    @invariant()
    def rows_agree(self) -> None:
        with self.session() as session:
            job = session.get_one(Job, self.job_id)
            attempts = session.scalars(select(Attempt).order_by(Attempt.fence)).all()
            events = session.scalars(select(JobEvent).order_by(JobEvent.seq)).all()
        assert [attempt.fence for attempt in attempts if attempt.outcome is None] == (
            [job.fence] if job.state == JobState.RUNNING else []
        )
        assert len(attempts) == job.attempts
        assert sum(attempt.outcome == AttemptOutcome.SUCCEEDED for attempt in attempts) == (job.state == "succeeded")
        assert [event.seq for event in events] == list(range(1, job.last_seq + 1))
        assert (events[-1].type == EventType.END) == (job.state in TERMINAL_STATES)
        assert job.state != JobState.QUEUED or job.desired == Desired.RUN
        assert job.failures <= job.max_failures


def test_no_order_of_events_breaks_a_job(engine: Engine) -> None:
    JobMachine.sessions = session_factory(engine)
    run_state_machine_as_test(
        JobMachine,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.slow
def test_no_order_of_events_breaks_a_job_thoroughly(engine: Engine) -> None:
    JobMachine.sessions = session_factory(engine)
    run_state_machine_as_test(
        JobMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
