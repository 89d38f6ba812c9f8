"""What users may do to a job, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Desired, JobState
from service.jobs import transitions
from service.jobs.states import RULES, Action, Target, useful_actions
from service.jobs.values import Accepted, Refused
from tests.integration.jobs.rows import claim, ended_by, enqueue, events, load
from tests.jobs import insert_job

Sessions = sessionmaker[Session]

ERROR = {"code": "loss_diverged", "detail": "NaN"}
ACT: dict[Action, Callable[[Session, UUID], Accepted | Refused | None]] = {
    Action.CANCEL: transitions.request_cancel,
    Action.PAUSE: transitions.request_pause,
    Action.RESUME: transitions.resume,
    Action.RETRY: transitions.retry,
}


@pytest.mark.parametrize(("state", "desired"), list(product(JobState, Desired)))
def test_user_actions_do_what_the_rules_say(sessions: Sessions, state: JobState, desired: Desired) -> None:
    for action, act in ACT.items():
        with sessions.begin() as session:
            job_id = insert_job(session, state, desired)
        with sessions.begin() as session:
            answer = act(session, job_id)
        after = load(sessions, job_id)
        target = RULES[state, desired].get(action)
        match answer:
            case Refused(allowed=allowed):
                assert target is None
                assert allowed == useful_actions(state, desired)
                assert (after.state, after.desired, after.revision) == (state, desired, 0)
            case Accepted(changed=changed):
                assert target == Target(JobState(after.state), Desired(after.desired))
                assert changed is (target != Target(state, desired))
                assert after.revision == int(changed)
                assert len(events(sessions, job_id)) == (0 if not changed else 2 if after.finished_at else 1)
            case None:
                pytest.fail("the job exists")


@pytest.mark.parametrize("action", list(Action))
def test_user_action_on_an_unknown_job(sessions: Sessions, action: Action) -> None:
    with sessions.begin() as session:
        assert ACT[action](session, UUID(int=0)) is None


def test_cancel_of_a_waiting_job_ends_it_at_once(sessions: Sessions) -> None:
    job_id = enqueue(sessions)
    with ended_by(sessions, job_id), sessions.begin() as session:
        transitions.request_cancel(session, job_id)
    with sessions.begin() as session:
        assert transitions.claim_next(session, ["cpu"], "w/0", 60) is None


def test_retry_forgives_failures_and_keeps_the_fence(sessions: Sessions) -> None:
    job_id = enqueue(sessions, max_failures=1)
    first = claim(sessions)
    with sessions.begin() as session:
        transitions.finish_failed(session, job_id, first.fence, error=ERROR, retryable=True, backoff_s=1)
    with sessions.begin() as session:
        assert isinstance(transitions.retry(session, job_id), Accepted)
    job = load(sessions, job_id)
    assert (job.state, job.failures, job.error, job.finished_at) == (JobState.QUEUED, 0, None, None)
    assert claim(sessions).fence == first.fence + 1
