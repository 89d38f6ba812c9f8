"""The worker process: ``python -m workers.main``. It never imports torch; its trainers do."""

from __future__ import annotations

import os
import platform
import socket
import threading
from importlib.metadata import version
from typing import Any

import structlog

from service.db.engine import ApplicationName, Timeouts, session_factory, sync_engine
from service.jobs.doorbell import ping_queue
from service.logs import configure_logging
from service.settings import Settings
from service.store import open_store
from workers.app import worker_app, worker_arguments, worker_queues
from workers.calibration import Calibrator
from workers.child import TrainerCommand
from workers.claim import JobLoop
from workers.context import WorkerContext
from workers.ending import Ending
from workers.hearing import Hearing
from workers.heartbeat import Presence
from workers.janitor import Janitor

log = structlog.get_logger(__name__)

# Of each slot: the lease keeper and the writing supervisor; and the presence beside them.
_CONNECTIONS_PER_SLOT = 2


def run(settings: Settings, command: TrainerCommand) -> int:
    """Serve the configured queues until SIGTERM or SIGINT, then hand running jobs back. Returns the exit code.

    Raises:
        workers.app.UnknownQueue: the settings name a queue that does not exist.
    """
    queues = worker_queues(settings)
    pool_size = 1 + _CONNECTIONS_PER_SLOT * settings.worker_slots
    timeouts = Timeouts.within(settings.lease_s)
    engine = sync_engine(settings.database_url, ApplicationName.WORKER, pool_size=pool_size, timeouts=timeouts)
    context = WorkerContext(
        settings=settings,
        sessions=session_factory(engine),
        store=open_store(settings.store_location),
        name=f"{settings.worker_name}@{socket.gethostname()}",
        command=command,
        draining=threading.Event(),
    )
    info = _info(settings)
    presence = Presence(
        context.sessions,
        name=context.name,
        queues=queues,
        slots=settings.worker_slots,
        info=info,
        heartbeat_s=settings.heartbeat_s,
        deaf_after_s=settings.deaf_after_s,
        draining=context.draining,
    )
    own_queue = ping_queue(context.name)
    app = worker_app(
        settings.broker_url,
        own_queue,
        wake=JobLoop(context, presence, info).wake,
        heard=presence.heard,
        draining=context.draining,
    )
    calibrator = Calibrator(settings, presence, context.draining)
    with Ending(presence, context.draining), presence, Janitor(context), calibrator, Hearing(app, own_queue, settings):
        log.info("worker_started", name=context.name, queues=queues, slots=settings.worker_slots)
        code = int(app.worker_main(worker_arguments(settings, [*queues, own_queue])) or 0)
    engine.dispose()
    log.info("worker_ended", code=code)
    return code


def _info(settings: Settings) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": settings.device,
        "versions": {
            "vitailor": version("vitailor"),
            "python": platform.python_version(),
            "celery": version("celery"),
        },
    }


def main() -> None:
    """Run a worker with the settings of the environment."""
    configure_logging()
    raise SystemExit(run(Settings(), TrainerCommand()))


if __name__ == "__main__":
    main()
