"""What a worker process says of itself, and what it clears away."""

from __future__ import annotations

import threading
import time

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import (
    Desired,
    JobState,
    Worker,
)
from tests.jobs import insert_job
from tests.waiting import wait_until
from workers.context import WorkerContext
from workers.heartbeat import Presence
from workers.rundirs import RunDirs


def test_a_worker_reports_busy_slots_draining_and_its_end(sessions: sessionmaker[Session]) -> None:
    draining = threading.Event()
    presence = Presence(
        sessions,
        name="w",
        queues=["cpu"],
        slots=2,
        info={"pid": 1},
        heartbeat_s=600.0,
        deaf_after_s=60.0,
        draining=draining,
    )

    def row() -> Worker | None:
        with sessions() as session:
            return session.get(Worker, "w")

    def shows(busy: int, is_draining: bool) -> bool:
        found = row()
        return found is not None and (found.busy, found.draining) == (busy, is_draining)

    with presence:
        wait_until(lambda: shows(0, False), "the worker reports")
        with presence.busy():
            wait_until(lambda: shows(1, False), "the slot is taken")
            draining.set()
            presence.announce()
            wait_until(lambda: shows(1, True), "the worker drains")
        wait_until(lambda: shows(0, True), "the slot is free")
    assert row() is None


def test_a_worker_is_deaf_until_it_hears_and_when_it_hears_no_more(sessions: sessionmaker[Session]) -> None:
    presence = Presence(
        sessions,
        name="w",
        queues=["cpu"],
        slots=1,
        info={},
        heartbeat_s=0.05,
        deaf_after_s=0.3,
        draining=threading.Event(),
    )

    def deaf() -> bool | None:
        with sessions() as session:
            return session.scalar(select(Worker.deaf))

    with presence:
        wait_until(lambda: deaf() is True, "it has heard nothing")
        presence.heard()
        wait_until(lambda: deaf() is False, "it has heard a message")
        wait_until(lambda: deaf() is True, "it hears no more")
        with presence.busy():
            wait_until(lambda: deaf() is False, "a bell reached it")
            busy_at = time.monotonic()
            wait_until(lambda: time.monotonic() - busy_at > 0.4, "it has no slot to hear with")
            assert not presence.is_deaf
        assert not presence.is_deaf
        wait_until(lambda: deaf() is True, "it hears no more")


def test_sweep_keeps_the_folders_of_running_attempts_only(
    sessions: sessionmaker[Session], context: WorkerContext
) -> None:
    with sessions.begin() as session:
        running = insert_job(session, JobState.RUNNING, Desired.RUN, fence=3)
        queued = insert_job(session, JobState.QUEUED, Desired.RUN, fence=3)
    dirs = RunDirs.of(context.settings)
    kept = dirs.make(running, 3)
    (kept.parent / "2").mkdir()
    orphan = dirs.make(queued, 3)
    (dirs.runs / "not-ours" / "x").mkdir(parents=True)
    with sessions() as session:
        assert dirs.sweep(session) == 2
    assert kept.is_dir()
    assert not (kept.parent / "2").exists()
    assert not orphan.parent.exists()
    assert (dirs.runs / "not-ours" / "x").is_dir()
