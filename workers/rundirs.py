"""Run directories, ``<data_dir>/runs/<job>/<fence>``: scratch space of one attempt each. Only promoted files last."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Job, JobState
from service.ids import BadId, IdKind, format_id, parse_id
from service.settings import Settings
from service.store.base import remove_abandoned

log = structlog.get_logger(__name__)

PIXELS = "pixels"
"""Folder of decoded images in the cache."""

PARTIAL, LOCK = ".partial", ".lock"
"""Suffixes, in the cache of decoded images, of a folder that is being built and of the lock that its builder holds."""


@dataclass(frozen=True, slots=True)
class RunDirs:
    """The folders of one data directory, which several workers may share."""

    runs: Path
    logs: Path
    cache: Path

    @classmethod
    def of(cls, settings: Settings) -> RunDirs:
        """The folders of the configured data directory."""
        data_dir = settings.data_dir.absolute()
        return cls(data_dir / "runs", data_dir / "logs" / "jobs", data_dir / "cache")

    def make(self, job_id: UUID, fence: int) -> Path:
        """An empty folder for an attempt; those of the job's earlier attempts are removed.

        An earlier trainer that still runs somewhere loses its folder here, which ends it the sooner.
        """
        job_dir = self.runs / format_id(IdKind.JOB, job_id)
        shutil.rmtree(job_dir, ignore_errors=True)
        run_dir = job_dir / str(fence)
        run_dir.mkdir(mode=0o700, parents=True)
        return run_dir

    def remove(self, job_id: UUID, fence: int) -> None:
        """Remove the folder of an attempt that has ended."""
        job_dir = self.runs / format_id(IdKind.JOB, job_id)
        shutil.rmtree(job_dir / str(fence), ignore_errors=True)
        with contextlib.suppress(OSError):  # it is gone, or another attempt has begun in it
            job_dir.rmdir()

    def log_path(self, job_id: UUID, fence: int) -> Path:
        """Where an attempt's trainer writes its log."""
        return self.logs / f"{format_id(IdKind.JOB, job_id)}-{fence}.log"

    def sweep(self, session: Session) -> int:
        """Remove folders that no running attempt owns, left by workers that were killed. Returns how many."""
        found = list(self._attempts())  # listed before the query: a folder that appears later is not judged
        running = session.execute(
            select(Job.id, Job.fence).where(Job.state == JobState.RUNNING, Job.id.in_([job_id for job_id, _ in found]))
        )
        orphans = set(found) - {(job_id, fence) for job_id, fence in running}
        for job_id, fence in orphans:
            self.remove(job_id, fence)
        return len(orphans)

    def remove_abandoned(self) -> int:
        """Remove half-written files and folders of the cache whose writers were killed; how many."""
        removed = remove_abandoned(self.cache / "blobs")
        for partial in self.pixels.glob(f"*{PARTIAL}"):
            lock = partial.with_suffix(LOCK)
            with contextlib.suppress(FileNotFoundError, BlockingIOError), lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by whoever builds the entry
                shutil.rmtree(partial)
                removed += 1
        return removed

    @property
    def pixels(self) -> Path:
        """Where decoded images lie."""
        return self.cache / PIXELS

    def _attempts(self) -> Iterator[tuple[UUID, int]]:
        for path in self.runs.glob("*/*"):
            try:
                yield parse_id(IdKind.JOB, path.parent.name), int(path.name)
            except (BadId, ValueError):
                log.warning("unknown_run_dir", path=str(path))
