"""Lets a worker find out whether messages reach it: it sends some to itself, through the broker."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import structlog
from celery import Celery
from kombu.exceptions import OperationalError as BrokerDown

from service.jobs.doorbell import ping
from service.settings import Settings

log = structlog.get_logger(__name__)

_PINGS = 3
"""In the time after which a worker that hears none of them is deaf."""


class Hearing:
    """A thread that sends a message to the worker's own queue now and then, while the context is entered.

    They are consumed over the same connection as the bells, so a worker that does not hear itself hears no bell:
    heartbeats in the database and answers to the broker's own pings say nothing about that.
    """

    def __init__(self, app: Celery, own_queue: str, settings: Settings) -> None:
        self._app = app
        self._queue = own_queue
        self._every_s = settings.deaf_after_s / _PINGS
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hearing", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: it may wait for a broker that does not answer.
        self._closing.set()

    def _run(self) -> None:
        while True:
            try:
                ping(self._app, self._queue)
            except BrokerDown as error:
                log.warning("ping_not_sent", error=str(error).splitlines()[0])
            except Exception:
                log.exception("ping_failed")
            if self._closing.wait(self._every_s):
                return
