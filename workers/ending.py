"""Lets a worker process end in time when the broker does not answer."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

import structlog

from workers.heartbeat import Presence

log = structlog.get_logger(__name__)

_BROKER_PATIENCE_S = 3.0
"""For the good-bye to the broker, once no job runs. A dead connection to it takes up to a minute to give up."""

_LOOK_S = 0.1


class Ending:
    """A thread that ends the process when it was asked to end, all jobs are handed back, and the broker holds it up.

    Nothing of a job is in the process then, and the broker has nothing that could be lost.
    """

    def __init__(self, presence: Presence, draining: threading.Event) -> None:
        self._presence = presence
        self._draining = draining
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="ending", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _run(self) -> None:
        self._draining.wait()
        while self._presence.is_busy:
            if self._ended.wait(_LOOK_S):
                return
        if self._ended.wait(_BROKER_PATIENCE_S):
            return
        log.warning("ends_without_the_broker")
        self._presence.close()
        os._exit(0)
