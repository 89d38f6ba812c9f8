"""A trainer that is light and yet real in all that faults can hurt: its result depends on every step it made.

Each step hashes the state before it. A step that is left out, made twice or made on another attempt's state gives
another result, other candidates and another file. Orders that are not for it go to the real stages.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from workers.channel import Channel
from workers.protocol import (
    ArtifactRef,
    CandidateRow,
    Candidates,
    CheckpointMessage,
    ExitCode,
    FileRef,
    Metric,
    Progress,
    Resource,
    Result,
    Start,
    Started,
)
from workers.trainer import run_stages, serve

KEY = "chain"
"""The part of a spec that is an order for this trainer: steps, step_s, checkpoint_every, trace, crash_at."""

STAGE = "chain"
_POLL_S = 0.02
_REPEAT = 2_000  # so that the file is of some size: 64 bytes each


class Chain:
    """One attempt."""

    def __init__(self, start: Start, channel: Channel) -> None:
        self._start = start
        self._channel = channel
        self._order: dict[str, Any] = start.spec[KEY]
        self._run_dir = Path(start.run_dir)
        # Append-only: lines of two processes never mix, and their order is the order in which they were written.
        self._trace = os.open(self._order["trace"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def run(self) -> Result:
        """Make all steps that are left."""
        self._channel.send(Started(versions={"chain": "1"}))
        first, state = self._restored()
        for step in range(first, self._order["steps"]):
            if self._channel.stop_reason is not None:
                self._checkpoint(step, state)
                self._channel.raise_if_stopped()
            if step == self._order.get("crash_at"):
                os._exit(9)
            os.write(self._trace, f"{self._start.fence} {step} {time.monotonic():.6f}\n".encode())
            state = self._step(step, state)
            self._report(step, state)
            if (step + 1) % self._order["checkpoint_every"] == 0:
                self._checkpoint(step + 1, state)
        return self._result(state)

    def _restored(self) -> tuple[int, str]:
        if self._start.resume is None:
            return 0, sha256(str(self._start.seed).encode()).hexdigest()
        state: str = self._start.resume.state["state"]
        if (self._run_dir / "chain.bin").read_text() != state * _REPEAT:
            os._exit(ExitCode.ERROR)  # a mixed checkpoint: ends as a crash, which the twin never has
        return self._start.resume.state["step"], state

    def _step(self, step: int, state: str) -> str:
        over_at = time.monotonic() + self._order["step_s"]
        while time.monotonic() < over_at and self._channel.stop_reason is None:
            time.sleep(_POLL_S)
        return sha256(f"{state} {step}".encode()).hexdigest()

    def _report(self, step: int, state: str) -> None:
        total = self._order["steps"]
        self._channel.send(Progress(stage=STAGE, fraction=(step + 1) / total))
        self._channel.send(Metric(stage=STAGE, step=step, values={"loss": int(state[:8], 16) / 2**32}))
        row = CandidateRow(
            n=step,
            generation=step // 4,
            genotype=[float(step)],
            parents=[],
            score=int(state[:8], 16) / 2**32,
            costs={"params_m": 1.0},
            feasible=True,
            architecture={"state": state},
        )
        self._channel.send(Candidates(rows=[row]))

    def _checkpoint(self, step: int, state: str) -> None:
        ref = self._write("chain.bin", f"chain-{step}.bin", state)
        teacher = Resource(kind="teacher", name="chain", file="chain.bin", info={"architecture": {"step": step}})
        message = CheckpointMessage(stage=STAGE, state={"step": step, "state": state}, files=[ref], resources=[teacher])
        self._channel.send(message)

    def _result(self, state: str) -> Result:
        ref = self._write("weights.bin", "weights.bin", state)
        artifact = ArtifactRef(**ref.model_dump(), kind="weights", media_type="text/plain", candidate_n=0)
        return Result(result={"state": state, "steps": self._order["steps"]}, artifacts=[artifact])

    def _write(self, name: str, path: str, state: str) -> FileRef:
        content = (state * _REPEAT).encode()
        partial = self._run_dir / f"{path}.partial"
        partial.write_bytes(content)
        partial.replace(self._run_dir / path)
        return FileRef(name=name, path=path, sha256=sha256(content).hexdigest(), size_bytes=len(content))


def run(start: Start, channel: Channel) -> Result:
    """The light job where the spec asks for it, else the stages."""
    return Chain(start, channel).run() if KEY in start.spec else run_stages(start, channel)


if __name__ == "__main__":
    serve(run)
