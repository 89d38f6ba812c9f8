"""The Celery app of a worker process: one task that answers the doorbell, and an orderly end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down

from service.jobs.doorbell import PING_TASK, WAKE_TASK, celery_app
from service.jobs.queues import QUEUES
from service.settings import Settings


class UnknownQueue(ValueError):
    """A worker is to serve a queue that does not exist."""


def worker_queues(settings: Settings) -> list[str]:
    """The queues that the worker serves.

    Raises:
        UnknownQueue: one of them is unknown, or there are none.
    """
    queues = [name.strip() for name in settings.queues.split(",") if name.strip()]
    unknown = [name for name in queues if name not in QUEUES]
    if unknown or not queues:
        raise UnknownQueue(f"queues {settings.queues!r}: expected some of {', '.join(QUEUES)}")
    return queues


def worker_app(
    broker_url: str,
    own_queue: str,
    *,
    wake: Callable[[str], int],
    heard: Callable[[], None],
    draining: threading.Event,
) -> Celery:
    """The app of a worker.

    Args:
        broker_url: see :func:`celery_app`.
        own_queue: for the messages that the worker sends to itself.
        wake: called with the queue of a bell.
        heard: called for a message of the own queue.
        draining: set when the process is asked to end (SIGTERM, SIGINT).
    """
    app = celery_app(broker_url, own_queue)

    @app.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]  # Celery has no annotations
    def answer(queue: str) -> None:
        wake(queue)

    @app.task(name=PING_TASK)  # type: ignore[untyped-decorator]
    def hear() -> None:
        heard()

    @worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
    def drain(**_: Any) -> None:
        # Sent in the main process before the pool waits for its threads, which therefore learn of it in time.
        draining.set()

    @setup_logging.connect(weak=False)  # type: ignore[untyped-decorator]
    def keep_logging(**_: Any) -> None:
        """Celery configures no logging when someone listens; else it would hide our informational lines."""

    return app


def worker_arguments(settings: Settings, queues: list[str]) -> list[str]:
    """Arguments of ``celery worker``: threads, because each slot only watches a trainer process."""
    return [
        "--quiet",
        "worker",
        "--pool=threads",
        f"--concurrency={settings.worker_slots}",
        f"--queues={','.join(queues)}",
        f"--hostname={settings.worker_name}@%h",
        # Chatter between workers, which has kept them from consuming after a broker's restart (celery#8030, #9054).
        "--without-mingle",
        "--without-gossip",
        "--without-heartbeat",
        "--loglevel=WARNING",
    ]
