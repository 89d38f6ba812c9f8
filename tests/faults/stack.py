"""Relay and workers as real processes on a test's own database, and the questions that tests ask of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from kombu.exceptions import OperationalError as BrokerDown
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError as DatabaseDown
from sqlalchemy.orm import Session, sessionmaker

from service.db.engine import session_factory
from service.db.models import Attempt, Checkpoint, Job, JobState, Worker
from service.embedded.applications import environment
from service.jobs import transitions
from service.jobs.doorbell import celery_app
from service.jobs.relay import Relay
from service.settings import Settings
from tests.jobs import counting_job
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Stack:
    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.sessions: sessionmaker[Session] = session_factory(engine)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = threading.Event()
        self._relay = threading.Thread(target=self._run_relay, name="relay")

    # --- processes ---

    def start_relay(self) -> None:
        """A thread of this process, which costs no start of another."""
        self._relay.start()

    def start_relay_process(self) -> subprocess.Popen[bytes]:
        """Any number of copies may run."""
        return self._start("service.jobs.relay", {})

    def start_worker(
        self, name: str = "one", *, module: str = "tests.faults.worker", **changes: Any
    ) -> subprocess.Popen[bytes]:
        """Returns once the worker has reported."""
        process = self._start(module, {"worker_name": name, **changes})
        wait_until(lambda: self.worker(name) is not None, f"worker {name} reports", limit_s=40)
        return process

    def close(self) -> None:
        self._closing.set()
        if self._relay.ident is not None:
            self._relay.join()
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def _start(self, module: str, changes: dict[str, Any]) -> subprocess.Popen[bytes]:
        env = os.environ | environment(self.settings.model_copy(update=changes)) | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-m", module], env=env, cwd=ROOT)
        self._processes.append(process)
        return process

    def _run_relay(self) -> None:
        relay = Relay(self.sessions, celery_app(self.settings.broker_url), self.settings)
        while not self._closing.wait(self.settings.relay_interval_s):
            with contextlib.suppress(DatabaseDown, BrokerDown):
                relay.run_once()

    # --- jobs ---

    def enqueue(self, **spec: Any) -> UUID:
        with self.sessions.begin() as session:
            return transitions.enqueue(session, counting_job(**spec)).id

    def act(self, action: Callable[[Session, UUID], Any], job_id: UUID) -> None:
        with self.sessions.begin() as session:
            action(session, job_id)

    def job(self, job_id: UUID) -> Job:
        with self.sessions() as session:
            return session.get_one(Job, job_id)

    def attempts(self, job_id: UUID) -> list[Attempt]:
        with self.sessions() as session:
            return list(session.scalars(select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.fence)))

    def checkpoints(self, job_id: UUID) -> list[Checkpoint]:
        with self.sessions() as session:
            return list(session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id)))

    def worker(self, name: str) -> Worker | None:
        with self.sessions() as session:
            return session.scalars(select(Worker).where(Worker.name.startswith(f"{name}@"))).one_or_none()

    # --- waiting ---

    def wait_for_state(self, job_id: UUID, state: JobState, limit_s: float = 40.0) -> Job:
        wait_until(lambda: self.job(job_id).state == state, f"job becomes {state}", limit_s)
        return self.job(job_id)

    def wait_for_checkpoint(self, job_id: UUID) -> None:
        wait_until(lambda: self.checkpoints(job_id), "a checkpoint is promoted", limit_s=40)


def trainer_pid(worker: subprocess.Popen[bytes]) -> int:
    """The only trainer that the worker runs."""
    [pid] = processes_below(worker.pid)
    return pid


def processes_below(pid: int) -> list[int]:
    """Children of all threads of a process."""
    children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for pids in children for child in pids]
