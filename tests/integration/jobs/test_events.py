"""The history of a job, on a real PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session, sessionmaker

from service.jobs.events import EventType, append_event
from tests.integration.jobs.rows import claim_one, enqueue, events

Sessions = sessionmaker[Session]


def test_events_are_numbered_without_gaps_under_concurrency(sessions: Sessions) -> None:
    job_id = enqueue(sessions)

    def append(n: int) -> int:
        with sessions.begin() as session:
            return append_event(session, job_id, EventType.LOG, {"n": n})

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(append, range(40)))
    assert sorted(numbers) == list(range(2, 42))
    assert [event.seq for event in events(sessions, job_id)] == list(range(1, 42))


def test_events_carry_the_fence_of_their_attempt(sessions: Sessions) -> None:
    claimed = claim_one(sessions)
    with sessions.begin() as session:
        append_event(session, claimed.job_id, EventType.LOG, {})
    assert [event.fence for event in events(sessions, claimed.job_id)] == [0, 1, 1]
