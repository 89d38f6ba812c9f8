"""Imports through HTTP, with the worker's parts in this process: to start a trainer for each takes ten times longer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi.testclient import TestClient

from service.errors import ServiceError
from service.jobs import transitions
from service.jobs.values import Lost
from tests.channels import RecordingChannel
from tests.trees import Files, write_files
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import Prepared, materialise
from workers.promote import hold, promote_result, upload
from workers.rundirs import RunDirs
from workers.stages.run import run_job


@dataclass(frozen=True, slots=True)
class Imported:
    """A dataset as the API shows it after its import."""

    dataset: dict[str, Any]
    report: dict[str, Any]

    @property
    def error(self) -> str:
        return str((self.dataset["error"] or {}).get("detail", ""))

    def found(self, code: str) -> dict[str, str]:
        """Paths and reasons of the findings of a kind."""
        return {entry["path"]: entry["reason"] for entry in self.report["findings"] if entry["code"] == code}


@dataclass(frozen=True, slots=True)
class ImportDesk:
    """A user who puts files below the import root and asks for their import, and the worker that does it."""

    api: TestClient
    context: WorkerContext
    root: Path

    def put(self, name: str, content: bytes | Files) -> str:
        """Write a file or a folder; returns its path for :meth:`run`."""
        folder = uuid4().hex
        path = self.root / folder / name
        if isinstance(content, bytes):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        else:
            write_files(path, content)
        return f"{folder}/{name}"

    def run(self, path: str, **source: Any) -> Imported:
        """Ask for the import, do it, and look at what came out."""
        asked = self.api.post("/datasets", json={"name": "mine", "source": {"path": path, **source}})
        assert asked.status_code == 202, asked.text
        self._work()
        dataset = self.api.get(f"/datasets/{asked.json()['id']}").json()
        assert dataset["status"] in ("ready", "rejected"), self.api.get(f"/jobs/{dataset['job']}").text
        report = self.api.get(dataset["report"]).json()["report"] if dataset["report"] else {"findings": []}
        return Imported(dataset, report)

    def _work(self) -> None:
        settings = self.context.settings
        with self.context.sessions.begin() as session:
            claim = transitions.claim_next(session, ["cpu"], "test", settings.lease_s)
        assert claim is not None
        run_dir = RunDirs.of(settings).make(claim.job_id, claim.fence)
        with LeaseKeeper(self.context.sessions, claim, settings, self.context.draining) as keeper:
            prepared = materialise(self.context, claim, keeper, run_dir)
        assert isinstance(prepared, Prepared)
        try:
            result = run_job(prepared.start, RecordingChannel())
        except ServiceError as error:
            with self.context.sessions.begin() as session:
                ended = transitions.finish_failed(
                    session,
                    claim.job_id,
                    claim.fence,
                    error=error.to_json(),
                    retryable=error.retryable,
                    backoff_s=settings.retry_backoff_s,
                )
        else:
            upload(self.context.store, run_dir, result.artifacts, set())
            with self.context.sessions.begin() as session:
                hold(session, self.context.store, result.artifacts)
                ended = promote_result(session, claim, result)
        assert not isinstance(ended, Lost)
        assert {path.name for path in run_dir.iterdir()} <= {"dataset.parquet", ".pinned"}, "something was unpacked"
        RunDirs.of(settings).remove(claim.job_id, claim.fence)
