"""Runs of the tiny search, with a channel that asks it to stop at a chosen moment."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.channels import RecordingChannel
from tests.stage_runs import TINY, resumed, search_start
from workers.channel import StopRequested
from workers.protocol import CandidateRow, Candidates, CheckpointMessage, Progress, Start, StopReason, TrainerMessage
from workers.stages.run import run_job


@dataclass(frozen=True, slots=True)
class StopAt:
    """When to ask for a stop: at the first progress of a stage that is at least this far."""

    stage: str
    fraction: float = 0.0
    reason: StopReason = "pause"


class StoppingChannel(RecordingChannel):
    """Asks for a stop at moments of the run itself, so that no clock takes part."""

    def __init__(self, *stops: StopAt | None) -> None:
        super().__init__()
        self._stops = [stop for stop in stops if stop is not None]

    def send(self, message: TrainerMessage) -> None:
        """Look for the moment."""
        super().send(message)
        if not isinstance(message, Progress):
            return
        for stop in self._stops:
            if message.stage == stop.stage and message.fraction >= stop.fraction:
                self.request_stop(stop.reason)

    @property
    def last_checkpoint(self) -> CheckpointMessage:
        """What the supervisor would have promoted last."""
        return self.of_type(CheckpointMessage)[-1]


def run_until(start: Start, *stops: StopAt) -> StoppingChannel:
    """Run a job that is stopped on the way."""
    channel = StoppingChannel(*stops)
    with pytest.raises(StopRequested):
        run_job(start, channel)
    return channel


def kept_rows(start: Start, checkpoint: CheckpointMessage) -> dict[str, list[Any]]:
    """What the files of a checkpoint within the search hold, by kind."""
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    for name, _ in checkpoint.state["state"]["ledger"]["segments"]:
        for line in (Path(start.run_dir) / name).read_text().splitlines():
            kind, row = json.loads(line)
            rows[kind].append(row)
    return rows


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has computed up to its export, as far as it must not depend on interruptions."""

    outputs: Mapping[str, Any]
    digests: Mapping[str, str]
    rows: Mapping[int, CandidateRow]


def search_to_export(
    folder: Path,
    *stops: StopAt,
    checkpoint_s: float = 1e9,
    changes: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] = TINY,
) -> Found:
    """Run the tiny search up to its export, in as many attempts as there are stops and one more."""
    start = search_start({**body, **(changes or {})}, folder, checkpoint_s=checkpoint_s)
    return run_in_attempts(start, folder, *stops, StopAt("export"))


def run_in_attempts(start: Start, folder: Path, *stops: StopAt) -> Found:
    """Run a search until the last of the stops, each attempt from where the one before was stopped."""
    rows: dict[int, CandidateRow] = {}
    for stop in stops:
        channel = run_until(start, stop)
        for batch in channel.of_type(Candidates):
            for row in batch.rows:
                assert rows.setdefault(row.n, row) == row, "a candidate that is sent again is the same"
        checkpoints = channel.of_type(CheckpointMessage)
        start = resumed(start, checkpoints[-1] if checkpoints else None, folder)
    last = channel.last_checkpoint
    return Found(last.state["outputs"], {ref.name: ref.sha256 for ref in last.files}, rows)
