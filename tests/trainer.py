"""A trainer that counts instead of training: the real protocol, dead-man and exit codes, and faults on demand.

The job's spec says what happens: ``steps``; ``checkpoint_every``; ``hold_at``: wait before this step until the file
``gate`` exists or a stop is asked for; ``trace``: a file that gets a line ``fence step`` for each step, which shows
who worked when; ``replace_files``: each checkpoint overwrites the files of the one before; ``binding``: checkpoints
are so; ``finish_on_budget``: send a result when the budget is spent; ``fault`` from step ``fault_at`` on, in attempts
up to number ``fault_attempts``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.errors import GpuOutOfMemory, LossDiverged
from workers.channel import Channel
from workers.protocol import (
    Accuracy,
    ArtifactRef,
    CandidateRow,
    Candidates,
    CheckpointMessage,
    FileRef,
    Metric,
    Progress,
    Resource,
    Result,
    Start,
    Started,
)
from workers.trainer import serve

POLL_S = 0.01


class Counting:
    def __init__(self, start: Start, channel: Channel) -> None:
        self.spec: dict[str, Any] = {
            "steps": 10,
            "checkpoint_every": 4,
            "binding": False,
            "hold_at": None,
            "gate": None,
            "trace": None,
            "replace_files": False,
            "finish_on_budget": False,
            "fault": None,
            "fault_at": 5,
            "fault_attempts": 10**9,
        } | start.spec
        self.start = start
        self.channel = channel
        self.run_dir = Path(start.run_dir)

    def run(self) -> Result:
        self.channel.send(Started(versions={"counting": "1"}))
        print("chatter of a library on stdout")  # must not disturb the protocol
        first = self.restored_step()
        for step in range(first, self.spec["steps"]):
            self.hold(step)
            self.misbehave(step)
            # The result names candidate 0, so that one is scored however long the start took.
            if step and self.channel.stop_reason == "budget" and self.spec["finish_on_budget"]:
                break
            if self.channel.stop_reason is not None and not (step == 0 and self.spec["finish_on_budget"]):
                self.checkpoint(step)
                self.channel.raise_if_stopped()
            self.trace(step)
            self.channel.send(Progress(stage="count", fraction=step / self.spec["steps"]))
            self.channel.send(Metric(stage="count", step=step, values={"loss": 1 / (step + 1)}))
            self.channel.send(Candidates(rows=[candidate(step)], joined=[step], anew=True))
            if (step + 1) % self.spec["checkpoint_every"] == 0:
                self.checkpoint(step + 1)
        return self.result()

    def restored_step(self) -> int:
        if self.start.resume is None:
            return 0
        assert self.start.resume.files == ["count.bin"]
        content = (self.run_dir / "count.bin").read_text()
        assert content == str(self.start.resume.state["step"])
        return int(content)

    def hold(self, step: int) -> None:
        if step == self.spec["hold_at"]:
            while not Path(self.spec["gate"]).exists() and self.channel.stop_reason is None:
                time.sleep(POLL_S)

    def misbehave(self, step: int) -> None:
        if step < self.spec["fault_at"] or self.start.fence > self.spec["fault_attempts"]:
            return
        match self.spec["fault"]:
            case "crash":
                os._exit(9)
            case "diverge":
                raise LossDiverged("The loss became NaN at step 5.")
            case "gpu_oom":
                raise GpuOutOfMemory("A step of 8 images needs more memory than there is.")
            case "no_memory":
                raise MemoryError
            case "hoard":
                bytearray(10**9)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "frozen":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "bug":
                raise KeyError("secret text of an exception")
            case "full_disk":
                raise OSError(28, "No space left on device", "/secret/path")
            case "garbage":
                self.channel._stream.write(b"not json\n")
                self.channel._stream.flush()
                self.forever()
            case "ignore_stop":
                self.forever()
            case "hog_interpreter":  # backtracks for years without ever giving the interpreter's lock away
                re.match(r"(a+)+$", "a" * 64 + "b")
            case "start_child":
                self.start_child()
                self.spec["fault"] = None
            case "leak_pipe":
                self.start_child(pass_fds=[self.channel._stream.fileno()], start_new_session=True)
                os._exit(9)
            case "leave_child":
                self.start_child()
                os._exit(9)

    def start_child(self, **options: Any) -> None:
        """Like a loader process: knows nothing of any supervisor."""
        loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options)
        Path(self.spec["trace"]).write_text(str(loader.pid))
        self.spec["trace"] = None

    def forever(self) -> None:
        while True:
            time.sleep(60)

    def trace(self, step: int) -> None:
        if self.spec["trace"]:
            with Path(self.spec["trace"]).open("a") as file:
                file.write(f"{self.start.fence} {step}\n")

    def write(self, name: str, path: str, text: str) -> FileRef:
        partial = self.run_dir / f"{path}.partial"
        partial.write_text(text)
        partial.replace(self.run_dir / path)
        return FileRef(name=name, path=path, sha256=sha256(text.encode()).hexdigest(), size_bytes=len(text))

    def checkpoint(self, step: int) -> None:
        path = "count.bin" if self.spec["replace_files"] else f"count-{step}.bin"
        ref = self.write("count.bin", path, str(step))
        teacher = Resource(kind="teacher", name="counter", file="count.bin", info={"architecture": {"depth": step}})
        binding = self.spec["binding"]
        state = {"step": step}
        self.channel.send(
            CheckpointMessage(stage="count", state=state, files=[ref], resources=[teacher], binding=binding)
        )

    def result(self) -> Result:
        ref = self.write("weights.bin", "weights.bin", json.dumps({"steps": self.spec["steps"]}))
        artifact = ArtifactRef(**ref.model_dump(), kind="weights", media_type="application/json", candidate_n=0)
        accuracy = Accuracy(candidate_n=0, rank=0, accuracy={"val": 0.5})
        reason = self.channel.stop_reason
        result = {"steps": self.spec["steps"]}
        return Result(result=result, stop_reason=reason, artifacts=[artifact], accuracies=[accuracy])


def candidate(n: int) -> CandidateRow:
    return CandidateRow(
        n=n,
        generation=n // 2,
        genotype=[float(n)],
        parents=[],
        score=-1.0 / (n + 1),
        costs={"params_m": 1.0},
        feasible=True,
        architecture={"depth": n},
    )


if __name__ == "__main__":
    serve(lambda start, channel: Counting(start, channel).run())
