"""Clears away what killed processes have left on this host and in the store, now and then and beside all work."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import structlog

from service.errors import Unavailable
from workers.context import WorkerContext
from workers.lease import DATABASE_DOWN
from workers.retention import sweep_blobs
from workers.rundirs import RunDirs

log = structlog.get_logger(__name__)


class Janitor:
    """A thread that sweeps while the context is entered: at once, then every ``sweep_s`` seconds.

    Any number of workers may share a data folder and a store; what a living process uses is never touched.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._dirs = RunDirs.of(context.settings)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not joined: a sweep of a big store may take longer than a worker has to end in, and may be cut anywhere.
        self._closing.set()

    def sweep(self) -> dict[str, int]:
        """One round. How many run directories, temporary files and blobs were removed.

        Raises:
            Unavailable: the store does not answer.
            sqlalchemy.exc.OperationalError: the database does not answer.
        """
        context = self._context
        with context.sessions() as session:
            run_dirs = self._dirs.sweep(session)
        files = self._dirs.remove_abandoned() + context.store.remove_abandoned()
        return {"run_dirs": run_dirs, "files": files, "blobs": sweep_blobs(context.sessions, context.store)}

    def _run(self) -> None:
        while True:
            try:
                removed = self.sweep()
            except (*DATABASE_DOWN, Unavailable) as error:
                log.warning("sweep_skipped", error=str(error).splitlines()[0])
            except Exception:
                log.exception("sweep_failed")
            else:
                if any(removed.values()):
                    log.info("swept", **removed)
            if self._closing.wait(self._context.settings.sweep_s):
                return
