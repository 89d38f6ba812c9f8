"""The whole service as real processes, each with a way to hurt it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

import psycopg
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from faults.chain import KEY
from faults.plan import Fault, LightJob, Moment
from faults.proxy import Proxy
from service.db.engine import session_factory, sync_engine
from service.db.models import Desired, Job, JobKind, JobState
from service.embedded import Embedded, children
from service.embedded.applications import application_children
from service.embedded.children import ChildSpec
from service.jobs import transitions
from service.jobs.doorbell import celery_app, ring
from service.jobs.values import NewJob
from service.keys.service import DEFAULT_OWNER
from service.settings import Settings

T = TypeVar("T")

MARK = "CHAOS_MARK"
"""An environment variable that every process of the service inherits, by which those that are left over are found."""

RELAYS = ("relay-1", "relay-2")
WORKERS = ("worker-1", "worker-2")
SLOTS = 2
_PATIENT = 10**6
_TICK_S = 0.05


class NoVictim(Exception):
    """There is nobody to hurt just now."""


class World:
    """Use as a context manager: the service runs inside, under ``folder``, which is removed at the end."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self._thaws: list[tuple[float, list[int]]] = []
        self._wishes: list[tuple[float, UUID, str]] = []
        self._undelay_at = 0.0
        self._over = threading.Event()
        self._recovery = threading.Thread(target=self._recover, name="recovery", daemon=True)
        self._kept = False
        self.left_alone: set[UUID] = set()
        """Jobs that nobody pauses or cancels."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="vitailor-chaos-"))
        self.folder.chmod(0o711)  # as root, the servers run under another account
        self.mark = self.folder.name
        os.environ[MARK] = self.mark
        # A child that dies often is not broken here.
        children.LAST_BACKOFF_S = children.FIRST_BACKOFF_S
        with contextlib.ExitStack() as stack:
            stack.callback(self._remove_folder)
            self._proxies = stack.enter_context(contextlib.ExitStack())
            self.service = Embedded(self._settings(), applications=self._children, durable=False)
            stack.enter_context(self.service)
            engine = sync_engine(self.service.settings.database_url, "chaos")
            stack.callback(engine.dispose)
            self.sessions = session_factory(engine)
            self._recovery.start()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        time.sleep(2 * _TICK_S)
        self._over.set()
        self._recovery.join()
        self._running.close()

    def keep(self) -> Path:
        """The folder, which is not removed at the end."""
        self._kept = True
        return self.folder

    def _remove_folder(self) -> None:
        if not self._kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _settings(self) -> Settings:
        return Settings(
            _env_file=None,
            data_dir=self.folder / "data",
            port=0,
            worker_slots=SLOTS,
            trainer_threads=1,
            lease_s=6,
            heartbeat_s=0.5,
            desired_poll_s=0.3,
            stop_grace_s=2,
            relay_interval_s=0.2,
            republish_s=1,
            retry_backoff_s=0.1,
            checkpoint_s=0.2,
            sweep_s=3,
            calibrate=False,
        )

    def _children(self, settings: Settings, listener: socket.socket) -> Sequence[ChildSpec]:
        """Two relays, two workers and the API, all of which reach their servers through the proxies."""
        servers = self.service.servers
        self.database = self._proxies.enter_context(Proxy(Path(servers.postgres.sockets) / ".s.PGSQL.5432"))
        self.broker = self._proxies.enter_context(Proxy(servers.valkey.socket))
        addresses = {
            "VITAILOR_DATABASE_URL": f"postgresql+psycopg://vitailor@127.0.0.1:{self.database.port}/vitailor",
            "VITAILOR_BROKER_URL": f"redis://127.0.0.1:{self.broker.port}/0",
        }
        found = {child.name: child for child in application_children(settings, listener)}
        relay, api, worker = (
            replace(child, env={**child.env, **addresses}) for child in (found["relay"], found["api"], found["worker"])
        )
        argv = (sys.executable, str(Path(__file__).with_name("worker.py")))
        return [
            *(replace(relay, name=name) for name in RELAYS),
            api,
            *(
                replace(worker, name=name, argv=argv, env={**worker.env, "VITAILOR_WORKER_NAME": name})
                for name in WORKERS
            ),
        ]

    # --- jobs ---

    def submit(self, job: LightJob, name: str | None = None) -> UUID:
        """Insert a light job, once, however often the database is away meanwhile."""
        name = name or job.name
        order = {
            "steps": job.steps,
            "step_s": job.step_s,
            "checkpoint_every": job.checkpoint_every,
            "trace": str(self.trace(name)),
            "crash_at": 2 if job.poisonous else None,
        }
        new = NewJob(
            owner=DEFAULT_OWNER,
            kind=JobKind.SEARCH,
            name=name,
            spec={"dataset": {"id": "digits"}, KEY: order},
            queue="cpu",
            seed=job.seed,
            max_failures=3 if job.poisonous else _PATIENT,
        )
        while True:
            try:
                with self.sessions.begin() as session:
                    known = session.scalars(select(Job.id).where(Job.name == name)).one_or_none()
                    return known or transitions.enqueue(session, new).id
            except DBAPIError:
                time.sleep(0.2)

    def trace(self, name: str) -> Path:
        """Where the attempts of a job write what they do."""
        return self.folder / f"{name}.trace"

    def want(self, job_id: UUID, action: str, at_s: float) -> None:
        """Ask for an action once the time has come, again and again until the database has heard it."""
        self._wishes.append((at_s, job_id, action))

    # --- faults ---

    def inflict(self, moment: Moment) -> None:
        """Let it happen.

        Raises:
            NoVictim: there is nobody just now whom it could hurt.
        """
        lease_s = self.service.settings.lease_s
        freeze_s = lease_s * (0.1 + 1.9 * moment.strength)
        short_s = 0.3 + 3.0 * moment.strength
        match moment.fault:
            case Fault.KILL_TRAINER:
                _kill([_pick(self.trainers(), moment)], signal.SIGKILL)
            case Fault.KILL_WORKER:
                _kill([self._child(WORKERS, moment)], signal.SIGKILL)
            case Fault.KILL_RELAY:
                _kill([self._child(RELAYS, moment)], signal.SIGKILL)
            case Fault.KILL_API:
                _kill([self._child(("api",), moment)], signal.SIGKILL)
            case Fault.KILL_POSTGRES:
                _kill([self._child(("postgres",), moment)], signal.SIGKILL)
            case Fault.KILL_SESSION:
                _kill([_pick(self._sessions_of_ours(), moment)], signal.SIGKILL)
            case Fault.KILL_VALKEY:
                _kill([self._child(("valkey",), moment)], signal.SIGKILL)
            case Fault.END_WORKER:
                _kill([self._child(WORKERS, moment)], signal.SIGTERM)
            case Fault.FREEZE_TRAINER:
                self._freeze([_pick(self.trainers(), moment)], freeze_s)
            case Fault.FREEZE_WORKER:
                self._freeze([self._child(WORKERS, moment)], freeze_s)
            case Fault.FREEZE_MACHINE:
                worker = self._child(WORKERS, moment)
                self._freeze([worker, *_children_of(worker)], freeze_s)
            case Fault.FREEZE_RELAY:
                self._freeze([self._child(RELAYS, moment)], freeze_s)
            case Fault.FREEZE_API:
                self._freeze([self._child(("api",), moment)], freeze_s)
            case Fault.FREEZE_POSTGRES:
                postmaster = self._child(("postgres",), moment)
                self._freeze([postmaster, *_children_of(postmaster)], short_s)
            case Fault.FREEZE_VALKEY:
                self._freeze([self._child(("valkey",), moment)], short_s)
            case Fault.FLUSH:
                self._flush()
            case Fault.RING:
                self._ring()
            case Fault.CUT_DATABASE:
                _require(self.database.cut())
            case Fault.MUTE_DATABASE:
                _require(self.database.mute())
            case Fault.DELAY_DATABASE:
                self.database.delay(0.02 + 0.2 * moment.strength)
                self._undelay_at = time.monotonic() + short_s
            case Fault.CUT_BROKER:
                _require(self.broker.cut())
            case Fault.MUTE_BROKER:
                _require(self.broker.mute())
            case Fault.PAUSE:
                self._disturb(moment, "pause", "resume", short_s)
            case Fault.CANCEL:
                self._disturb(moment, "cancel", "retry", short_s)

    def tend(self) -> None:
        """Say what is wished by now."""
        now = time.monotonic()
        for wish in [entry for entry in self._wishes if entry[0] <= now]:
            with contextlib.suppress(DBAPIError):
                if self._say(*wish[1:]):
                    self._wishes.remove(wish)

    def _recover(self) -> None:
        """Wake who has slept long enough. In a thread of its own: others may wait for the very server that sleeps."""
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            for entry in [entry for entry in self._thaws if entry[0] <= now]:
                self._thaws.remove(entry)
                _kill(entry[1], signal.SIGCONT)
            if self._undelay_at <= now:
                self.database.delay(0)

    def calm(self) -> None:
        """No more faults: everybody wakes, and nothing is delayed any longer."""
        self._thaws = [(0.0, pids) for _, pids in self._thaws]
        self._undelay_at = 0.0
        self._wishes = [(0.0, job_id, action) for _, job_id, action in self._wishes]

    @property
    def has_wishes(self) -> bool:
        """Whether something is still to be said."""
        return bool(self._wishes)

    # --- looking ---

    def trainers(self) -> list[int]:
        """Process ids of all trainers."""
        return [pid for pid in marked_processes(self.mark) if b"chain.py" in command_of(pid)]

    def _child(self, names: Sequence[str], moment: Moment) -> int:
        pids = self.service.pids()
        return _pick([pids[name] for name in names if name in pids], moment)

    def _sessions_of_ours(self) -> list[int]:
        try:
            with psycopg.connect(self._conninfo(), connect_timeout=2, autocommit=True) as connection:
                rows = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'vitailor %' ORDER BY backend_start"
                )
                return [row[0] for row in rows]
        except psycopg.OperationalError as error:
            raise NoVictim from error

    def _conninfo(self) -> str:
        return f"host={self.service.servers.postgres.sockets} user=vitailor dbname=vitailor"

    def _flush(self) -> None:
        try:
            with Redis(unix_socket_path=str(self.service.servers.valkey.socket), socket_timeout=2) as broker:
                broker.flushall()
        except RedisError as error:
            raise NoVictim from error

    def _ring(self) -> None:
        # A frozen broker would let the caller wait; the proxies are not for us.
        with (
            contextlib.suppress(RedisError),
            Redis(unix_socket_path=str(self.service.servers.valkey.socket), socket_timeout=2) as broker,
        ):
            broker.ping()
            bell = celery_app(self.service.servers.valkey.url)
            for _ in range(10):
                ring(bell, "cpu")
            return
        raise NoVictim

    def _freeze(self, pids: list[int], seconds: float) -> None:
        _kill(pids, signal.SIGSTOP)
        self._thaws.append((time.monotonic() + seconds, pids))

    def _disturb(self, moment: Moment, action: str, undo: str, after_s: float) -> None:
        busy = {job_id for _, job_id, _ in self._wishes} | self.left_alone
        query = select(Job.id).where(Job.state.in_([JobState.QUEUED, JobState.RUNNING]), Job.desired == Desired.RUN)
        try:
            with self.sessions() as session:
                job_ids = [job_id for job_id in session.scalars(query.order_by(Job.id)) if job_id not in busy]
            job_id = _pick(job_ids, moment)
            self._say(job_id, action)
        except DBAPIError as error:
            raise NoVictim from error
        self.want(job_id, undo, time.monotonic() + after_s)

    def _say(self, job_id: UUID, action: str) -> bool:
        """Whether it has come to something; a job that is still being cancelled cannot be retried yet."""
        with self.sessions.begin() as session:
            job = session.get_one(Job, job_id)
            if action == "retry" and job.state == JobState.RUNNING and job.desired == Desired.CANCEL:
                return False
            _ACTIONS[action](session, job_id)
        return True


_ACTIONS: Mapping[str, Callable[[Session, UUID], object]] = {
    "cancel": transitions.request_cancel,
    "retry": transitions.retry,
    "pause": transitions.request_pause,
    "resume": transitions.resume,
}


def marked_processes(mark: str) -> list[int]:
    """All living processes but this one that inherited the mark."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if sought in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return sorted(found)


def command_of(pid: int) -> bytes:
    """Its command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _children_of(pid: int) -> list[int]:
    """Children of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _pick(among: Sequence[T], moment: Moment) -> T:
    if not among:
        raise NoVictim
    return among[int(moment.choice * len(among))]


def _require(connections: int) -> None:
    if not connections:
        raise NoVictim


def _kill(pids: Sequence[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
