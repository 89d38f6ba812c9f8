"""Keeps the lease of one job alive, learns what its user wants, and stops the trainer in time when it must."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Desired, JobKind
from service.jobs import transitions
from service.jobs.values import Claim, Held, Lost
from service.settings import Settings
from workers.child import Child
from workers.protocol import Lease, Start, StopReason

log = structlog.get_logger(__name__)
T = TypeVar("T")

DATABASE_DOWN = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""What SQLAlchemy raises when the server cannot be reached, restarts, or does not answer in time.

``InternalError`` is among them because it is what psycopg makes of a session that the server has ended for idling in a
transaction, which happens to a worker that was frozen there.
"""

KILL_AT = 0.92
"""Share of the lease without renewal after which nothing of the attempt may run any more."""

WRAP_UP_S = 60.0
"""How long a trainer whose budget is spent may take to export the best so far and to prove the export."""

_HELPER_GRACE_S = 2.0
"""A helper has nothing to save; its search is over, and somebody waits for the slot."""

_STOPS: dict[Desired, StopReason] = {Desired.CANCEL: "cancel", Desired.PAUSE: "pause"}


class LeaseKeeper:
    """A thread that renews the lease, and the gate through which all writes of the attempt go.

    Use as a context manager. Once :attr:`lost`, the job is somebody else's and nothing may be written.
    """

    def __init__(
        self, sessions: sessionmaker[Session], claim: Claim, settings: Settings, draining: threading.Event
    ) -> None:
        self._sessions = sessions
        self._claim = claim
        self._settings = settings
        self._draining = draining
        self._held_until = time.monotonic() + settings.lease_s
        self._beat_at = time.monotonic()
        self._child: Child | None = None
        self._attaching = threading.Lock()
        self._facts: dict[str, Any] = {}
        self._stop_reason: StopReason | None = None
        self._lost = threading.Event()
        self._closing = threading.Event()
        run_with_log_context = contextvars.copy_context().run
        self._thread = threading.Thread(target=run_with_log_context, args=(self._run,), name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._tick()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    @property
    def lost(self) -> bool:
        """True once the database has said that the job is no longer this attempt's."""
        return self._lost.is_set()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the attempt has to stop, None while it may go on."""
        return self._stop_reason

    @property
    def remaining_s(self) -> float:
        """Seconds that the lease still holds for certain; negative when it may have run out."""
        return self._held_until - time.monotonic()

    @property
    def facts(self) -> dict[str, Any]:
        """What was last seen of the trainer process: its memory, see ``workers.memory.memory_facts``."""
        return self._facts

    def attach(self, child: Child, start: Start) -> None:
        """Start the trainer's work, let it know of renewals, and stop it when need be."""
        with self._attaching:
            child.send(start)
            child.send(Lease(ttl_s=max(0.0, self.remaining_s)))
            self._child = child
            if self._stop_reason is not None:
                child.stop(self._stop_reason, self._grace_s(self._stop_reason))

    def write(self, change: Callable[[Session], T]) -> T | Lost:
        """Run ``change`` in a transaction of its own, again and again while the database is away.

        ``change`` guards itself by the fence and must be harmless when repeated: an answer may get lost after the
        commit. Gives up when the job is lost, or when the worker must end and the lease has run out.
        """
        while not self.lost:
            try:
                with self._sessions.begin() as session:
                    return change(session)
            except DATABASE_DOWN as error:
                log.warning("write_waits", error=str(error).splitlines()[0])
            if self._draining.is_set() and self.remaining_s < 0:
                break
            self._lost.wait(self._settings.desired_poll_s)
        return Lost()

    def _run(self) -> None:
        while not self._closing.wait(self._settings.desired_poll_s):
            try:
                self._tick()
            except Exception:
                log.exception("lease_keeper_failed")

    def _tick(self) -> None:
        if self._child is not None:
            self._facts = self._child.memory() or self._facts
        try:
            answer = self._ask()
        except DATABASE_DOWN as error:
            log.warning("heartbeat_failed", remaining_s=round(self.remaining_s, 1), error=str(error).splitlines()[0])
            answer = None
        if isinstance(answer, Lost):
            self._lost.set()
            self._kill_child()
            return
        if isinstance(answer, Held):
            self._obey(answer)
        if self._draining.is_set():
            self._stop("drain")
        if self.remaining_s < self._settings.lease_s * (1 - KILL_AT):
            self._stop_reason = self._stop_reason or "lease_lost"
            self._kill_child()

    def _ask(self) -> Held | Lost:
        asked_at = time.monotonic()
        with self._sessions.begin() as session:
            if asked_at < self._beat_at:
                return transitions.look(session, self._claim.job_id, self._claim.fence)
            answer = transitions.heartbeat(
                session, self._claim.job_id, self._claim.fence, self._settings.lease_s, self._facts
            )
        if isinstance(answer, Held):
            # Counted from before the request, so that the trainer's clock can only run out before the database's.
            self._held_until = asked_at + self._settings.lease_s
            self._beat_at = asked_at + self._settings.heartbeat_s
            if self._child is not None:
                self._child.send(Lease(ttl_s=max(0.0, self.remaining_s)))
        return answer

    def _obey(self, held: Held) -> None:
        if held.desired is not Desired.RUN:
            self._stop(_STOPS[held.desired])
        elif held.deadline_passed:
            self._stop("budget")

    def _stop(self, reason: StopReason) -> None:
        with self._attaching:
            if self._stop_reason in (None, "budget"):
                self._stop_reason = reason
            if self._child is not None:
                self._child.stop(reason, self._grace_s(reason))

    def _grace_s(self, reason: StopReason) -> float:
        if self._claim.kind is JobKind.SCORING:
            return min(_HELPER_GRACE_S, self._settings.stop_grace_s)
        return max(self._settings.stop_grace_s, WRAP_UP_S) if reason == "budget" else self._settings.stop_grace_s

    def _kill_child(self) -> None:
        if self._child is not None:
            self._child.kill()
