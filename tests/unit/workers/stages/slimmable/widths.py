"""Runs of searches over widths, and jobs on the networks that they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.datasets.builtin import BUILTINS
from tests.channels import RecordingChannel
from workers.protocol import BlobRef, CheckpointMessage, Resource, Result, Start
from workers.stages.run import run_job


@dataclass(frozen=True)
class Run:
    """A job that has ended."""

    start: Start
    channel: RecordingChannel
    result: Result

    def file(self, name: str, n: int | None = None) -> Path:
        """Where a file of the result lies."""
        [ref] = [ref for ref in self.result.artifacts if (ref.name, ref.candidate_n) == (name, n)]
        return Path(self.start.run_dir) / ref.path

    def announced(self, kind: str) -> list[Resource]:
        """Resources that checkpoints brought."""
        checkpoints = self.channel.of_type(CheckpointMessage)
        return [resource for message in checkpoints for resource in message.resources if resource.kind == kind]

    @property
    def supernet(self) -> Resource:
        """The slimmable network that the job registered."""
        [resource] = self.announced("supernet")
        return resource


def run_whole(start: Start) -> Run:
    """Run a job to its end."""
    channel = RecordingChannel()
    return Run(start, channel, run_job(start, channel))


def job_on(run: Run, kind: str, spec: Mapping[str, Any], folder: Path) -> Start:
    """The order of a job on the slimmable network that a run has left."""
    (folder / "run").mkdir()
    told = dict(run.supernet.info)
    method, space = told.pop("method"), told.pop("space")
    digest = told["files"]["supernet.safetensors"]
    supernet = {"id": "sn_1", "method": method, "digest": digest, "space": space, "info": told}
    path = run.file("supernet.safetensors")
    return run.start.model_copy(
        update={
            "kind": kind,
            "spec": {"supernet": "sn_1", **spec},
            "run_dir": str(folder / "run"),
            "dataset": BUILTINS["digits"].to_json() if "dataset" in spec else {},
            "supernet": supernet,
            "inputs": [BlobRef(name="supernet.safetensors", path=str(path), sha256=digest)],
        }
    )
