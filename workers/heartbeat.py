"""The worker process's own row: that it lives, what it serves, and how many slots are idle. The relay rings by it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import structlog
from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Worker
from workers.lease import DATABASE_DOWN

log = structlog.get_logger(__name__)


class Presence:
    """A thread that keeps the row fresh while the context is entered, and removes it at the end.

    A worker whose slots are not all taken has to hear something from the broker every ``deaf_after_s`` seconds, on its
    monotonic clock; else its row says that it is deaf. It is until it has heard the first message.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        *,
        name: str,
        queues: Sequence[str],
        slots: int,
        info: dict[str, Any],
        heartbeat_s: float,
        deaf_after_s: float,
        draining: threading.Event,
    ) -> None:
        self._sessions = sessions
        self._row: dict[str, Any] = {"name": name, "queues": list(queues), "slots": slots, "info": info}
        self._heartbeat_s = heartbeat_s
        self._deaf_after_s = deaf_after_s
        self._draining = draining
        self._heard_at: float | None = None
        self._busy = 0
        self._counting = threading.Lock()
        self._changed = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the row; nothing happens the second time."""
        self._closing = True
        self._changed.set()
        self._thread.join()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """One slot is taken while this is entered, by a message."""
        self.heard()
        self._count(1)
        try:
            yield
        finally:
            self.heard()  # until now it may have had no slot to hear with
            self._count(-1)

    def heard(self) -> None:
        """A message has come from the broker."""
        was_deaf, self._heard_at = self.is_deaf, time.monotonic()
        if was_deaf:
            self.announce()

    @property
    def is_deaf(self) -> bool:
        """Whether a slot is free, and nothing was heard for too long."""
        if self._busy >= self._row["slots"]:
            return False
        return self._heard_at is None or time.monotonic() - self._heard_at > self._deaf_after_s

    def announce(self) -> None:
        """Something changed: write the row now."""
        self._changed.set()

    @property
    def is_busy(self) -> bool:
        """Whether a slot is taken."""
        return self._busy > 0

    def tell(self, key: str, value: Any) -> None:
        """Add a fact to the row's ``info``."""
        self._row = self._row | {"info": self._row["info"] | {key: value}}
        self.announce()

    def _count(self, change: int) -> None:
        with self._counting:
            self._busy += change
        self.announce()

    def _run(self) -> None:
        while not self._closing:
            self._attempt(self._write)
            self._changed.wait(self._heartbeat_s)
            # Before the look at what changed, not after it: a change in between would wait for the next heartbeat.
            self._changed.clear()
        self._attempt(self._remove)

    def _attempt(self, change: Callable[[Session], None]) -> None:
        try:
            with self._sessions.begin() as session:
                change(session)
        except DATABASE_DOWN as error:
            log.warning("presence_not_written", error=str(error).splitlines()[0])
        except Exception:
            log.exception("presence_failed")

    def _write(self, session: Session) -> None:
        state = self._row | {"busy": self._busy, "draining": self._draining.is_set(), "deaf": self.is_deaf}
        session.execute(
            insert(Worker)
            .values(**state)
            .on_conflict_do_update(index_elements=[Worker.name], set_=state | {"heartbeat_at": func.now()})
        )

    def _remove(self, session: Session) -> None:
        session.execute(delete(Worker).where(Worker.name == self._row["name"]))
