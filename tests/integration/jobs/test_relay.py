"""The relay against real servers: what is rung, how often, and what happens while the broker is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError as BrokerDown
from redis import Redis
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import ApplicationName, session_factory
from service.db.models import Desired, Job, JobState, Worker
from service.embedded.applications import environment
from service.embedded.servers import Servers
from service.jobs import transitions
from service.jobs.doorbell import celery_app, ring
from service.jobs.relay import Pass, Relay
from service.settings import Settings
from tests.jobs import insert_job, new_job
from tests.waiting import wait_until


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return session_factory(engine)


@pytest.fixture
def broker(servers: Servers) -> Iterator[Redis]:
    with Redis(unix_socket_path=str(servers.valkey.socket), decode_responses=True) as client:
        yield client


@pytest.fixture
def patient(settings: Settings) -> Settings:
    """No lease and no bell runs out while the test looks."""
    return settings.model_copy(update={"lease_s": 600.0, "republish_s": 600.0})


@pytest.fixture
def relay(sessions: sessionmaker[Session], patient: Settings) -> Relay:
    return Relay(sessions, celery_app(patient.broker_url), patient)


def add_worker(sessions: sessionmaker[Session], slots: int, busy: int = 0, **changes: object) -> None:
    with sessions.begin() as session:
        values = {"name": f"w{slots}", "queues": ["cpu"], "slots": slots, "busy": busy, "info": {}}
        session.add(Worker(**(values | changes)))


def add_jobs(sessions: sessionmaker[Session], count: int, **changes: object) -> list[UUID]:
    with sessions.begin() as session:
        return [transitions.enqueue(session, new_job(**changes)).id for _ in range(count)]


def published(sessions: sessionmaker[Session]) -> set[UUID]:
    with sessions() as session:
        return set(session.scalars(select(Job.id).where(Job.published_at.is_not(None))))


def rung(broker: Redis, queue: str = "cpu") -> int:
    return int(broker.llen(f"vitailor:{queue}"))


def test_no_more_bells_than_idle_slots(relay: Relay, sessions: sessionmaker[Session], broker: Redis) -> None:
    add_worker(sessions, slots=3, busy=1)
    jobs = add_jobs(sessions, 5)
    assert relay.run_once() == Pass(reaped=0, forgotten=0, rung=2)
    assert relay.run_once() == Pass(reaped=0, forgotten=0, rung=0)
    assert rung(broker) == 2
    assert published(sessions) == set(jobs[:2])


def test_bells_go_to_queues_that_somebody_serves(relay: Relay, sessions: sessionmaker[Session], broker: Redis) -> None:
    add_worker(sessions, slots=5)
    add_worker(sessions, slots=4, queues=["gpu"], draining=True)
    add_jobs(sessions, 1, queue="gpu")
    add_jobs(sessions, 1)
    relay.run_once()
    assert (rung(broker, "cpu"), rung(broker, "gpu")) == (1, 0)


def test_urgent_jobs_are_rung_for_first(relay: Relay, sessions: sessionmaker[Session]) -> None:
    add_worker(sessions, slots=1)
    add_jobs(sessions, 2)
    [urgent] = add_jobs(sessions, 1, priority=9)
    relay.run_once()
    assert published(sessions) == {urgent}


def test_a_bell_that_nobody_answered_is_rung_again(
    relay: Relay, sessions: sessionmaker[Session], broker: Redis
) -> None:
    add_worker(sessions, slots=1)
    add_jobs(sessions, 1)
    relay.run_once()
    broker.flushall()
    with sessions.begin() as session:
        session.execute(update(Job).values(published_at=func.now() - timedelta(seconds=601)))
    assert relay.run_once().rung == 1
    assert rung(broker) == 1


def test_bells_that_nobody_takes_do_not_pile_up(relay: Relay, sessions: sessionmaker[Session], broker: Redis) -> None:
    """A worker that reports but does not listen: its clock is wrong, or it hangs."""
    add_worker(sessions, slots=2)
    add_jobs(sessions, 5)
    for _ in range(5):
        relay.run_once()
        with sessions.begin() as session:
            session.execute(update(Job).values(published_at=func.now() - timedelta(seconds=601)))
    assert rung(broker) == 2


def test_a_bell_counts_whatever_the_clock_of_the_worker_says(broker_url: str, broker: Redis) -> None:
    ring(celery_app(broker_url), "cpu")
    [message] = broker.lrange("vitailor:cpu", 0, -1)
    assert json.loads(message)["headers"]["expires"] is None


def test_jobs_in_backoff_are_not_rung_for(relay: Relay, sessions: sessionmaker[Session]) -> None:
    add_worker(sessions, slots=1)
    add_jobs(sessions, 1)
    with sessions.begin() as session:
        session.execute(update(Job).values(not_before=func.now() + timedelta(hours=1)))
    assert relay.run_once().rung == 0


def test_silent_workers_are_forgotten_and_their_leases_reaped(relay: Relay, sessions: sessionmaker[Session]) -> None:
    add_worker(sessions, slots=1, heartbeat_at=func.now() - timedelta(seconds=601))
    with sessions.begin() as session:
        job_id = insert_job(session, JobState.RUNNING, Desired.RUN)
        session.execute(update(Job).values(lease_until=func.now() - timedelta(seconds=1)))
    assert relay.run_once() == Pass(reaped=1, forgotten=1, rung=0)
    with sessions() as session:
        assert session.get_one(Job, job_id).state == JobState.QUEUED
        assert session.scalars(select(Worker)).all() == []


def test_a_second_copy_rings_for_nothing_twice(
    relay: Relay, sessions: sessionmaker[Session], patient: Settings, broker: Redis
) -> None:
    add_worker(sessions, slots=9)
    add_jobs(sessions, 4)
    second = Relay(sessions, celery_app(patient.broker_url), patient)
    with sessions.begin() as elsewhere:  # the first copy holds two rows, as it does in the middle of its pass
        elsewhere.execute(text("SELECT id FROM job ORDER BY id LIMIT 2 FOR UPDATE"))
        assert second.run_once().rung == 2
    assert relay.run_once().rung == 2
    assert rung(broker) == 4


def test_without_a_broker_leases_are_reaped_and_bells_wait(
    sessions: sessionmaker[Session], patient: Settings, relay: Relay
) -> None:
    add_worker(sessions, slots=5)
    add_jobs(sessions, 2)
    with sessions.begin() as session:
        insert_job(session, JobState.RUNNING, Desired.CANCEL)
        session.execute(
            update(Job).where(Job.state == JobState.RUNNING).values(lease_until=func.now() - timedelta(seconds=1))
        )
    deaf = Relay(sessions, celery_app("redis+socket:///nonexistent/socket"), patient)
    with pytest.raises(BrokerDown):
        deaf.run_once()
    with sessions() as session:
        assert set(session.scalars(select(Job.state))) == {JobState.QUEUED, JobState.CANCELLED}
    assert relay.run_once().rung == 2  # at once, not only after republish_s


def test_an_undeclared_queue_is_an_error(broker_url: str) -> None:
    with pytest.raises(QueueNotFound):
        ring(celery_app(broker_url), "cpus")


def test_the_process_survives_a_lost_database_session_and_ends_fast(
    patient: Settings, sessions: sessionmaker[Session], broker: Redis
) -> None:
    env = os.environ | environment(patient)
    process = subprocess.Popen([sys.executable, "-m", "service.jobs.relay"], env=env, cwd=Path(__file__).parents[2])
    try:
        wait_until(lambda: kill_sessions_of_relay(sessions), "the relay is connected, and then is not", limit_s=40)
        add_worker(sessions, slots=1)
        add_jobs(sessions, 1)
        wait_until(lambda: rung(broker) == 1, "it rings all the same")
        process.send_signal(signal.SIGTERM)
        asked_at = time.monotonic()
        assert process.wait(timeout=20) == 0
        assert time.monotonic() - asked_at < 3
    finally:
        process.kill()
        process.wait()


def kill_sessions_of_relay(sessions: sessionmaker[Session]) -> int:
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name"
    with sessions.begin() as session:
        return int(session.execute(text(query), {"name": ApplicationName.RELAY}).scalar_one())
