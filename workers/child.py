"""A running trainer as its supervisor sees it: messages out, messages in, and a way to stop it that always works."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from workers.memory import limit_data, memory_facts, prefer_to_kill
from workers.protocol import Stop, StopReason, SupervisorMessage, TrainerMessage, decode_from_trainer, encode

# A trainer that reports faster than the database takes it waits in `send`, so memory stays bounded.
_QUEUED_LINES = 256

# Our settings, and the credentials that S3 clients and libpq look for.
_PRIVATE = ("VITAILOR_", "AWS_", "PG")

# What a dead trainer has written is read at once; this much later there is nothing more to come.
_LAST_WORDS_S = 5.0


LIMITED = {"MALLOC_MMAP_THRESHOLD_": "262144"}
"""Environment of a trainer whose memory is limited: glibc gives the memory of a freed tensor back at once.

Otherwise it keeps it for tensors of other sizes, and once the limit was reached, not even small batches fit any more.
"""


@dataclass(frozen=True, slots=True)
class TrainerCommand:
    """The program that trains."""

    argv: tuple[str, ...] = (sys.executable, "-m", "workers.trainer")


class Child:
    """One trainer process, leader of its own session and process group.

    Methods may be called from any thread.

    Args:
        command: the program.
        threads: of its computations.
        log_path: where its stderr goes.
        memory_bytes: beyond which its allocations fail; None: no limit.
    """

    def __init__(self, command: TrainerCommand, threads: int, log_path: Path, memory_bytes: int | None = None) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=trainer_environment(os.environ, threads) | (LIMITED if memory_bytes is not None else {}),
                start_new_session=True,
            )
        prefer_to_kill(self.pid)
        if memory_bytes is not None:
            limit_data(self.pid, memory_bytes)
        self._stopping = threading.Lock()
        self._stop_reason: StopReason | None = None
        self._gone = threading.Event()
        self._gone_at = 0.0
        self._reaping = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUED_LINES)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.drained = False
        for target in (self._watch, self._read, self._write):
            threading.Thread(target=target, name=f"trainer-{self.pid}{target.__name__}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group."""
        return self._process.pid

    def receive(self, timeout_s: float) -> TrainerMessage | None:
        """The next message, None when there is none in time, or ever: then :attr:`drained` is True.

        Raises:
            pydantic.ValidationError: the trainer wrote something else.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            # A process that has left the group may hold the pipe open for ever.
            self.drained = self._gone.is_set() and time.monotonic() > self._gone_at + _LAST_WORDS_S
            return None
        if line is None:
            self.drained = True
            return None
        return decode_from_trainer(line)

    def send(self, message: SupervisorMessage) -> None:
        """Send a message without ever waiting: whoever has to stop a frozen trainer must not hang on its pipe."""
        self._outbox.put(encode(message))

    def stop(self, reason: StopReason, grace_s: float) -> None:
        """Begin to stop it: a line, after the grace time SIGTERM, after that again SIGKILL.

        The first reason stays, except that any other goes before a spent budget.
        """
        with self._stopping:
            if self._stop_reason not in (None, "budget") or self._stop_reason == reason:
                return
            self._stop_reason = reason
        arguments = (reason, grace_s)
        threading.Thread(target=self._stop_ladder, args=arguments, name=f"trainer-{self.pid}_stop", daemon=True).start()

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until its whole group is dead; exit code, negative for a signal."""
        self._gone.wait()
        return self._process.returncode

    def memory(self) -> dict[str, int]:
        """See ``workers.memory.memory_facts``; empty when the process is gone."""
        return memory_facts(self.pid)

    def close(self) -> None:
        """Kill what still runs and let the pipes be closed."""
        self.kill()
        self._gone.wait()
        self._outbox.put(None)
        while not self.drained:  # so that the reading thread never waits for room
            with contextlib.suppress(ValidationError):
                self.receive(_LAST_WORDS_S)

    def _read(self) -> None:
        with _pipe(self._process.stdout) as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _write(self) -> None:
        # A trainer that is gone does not mind.
        with contextlib.suppress(BrokenPipeError), _pipe(self._process.stdin) as stdin:
            for line in iter(self._outbox.get, None):
                stdin.write(line)
                stdin.flush()

    def _watch(self) -> None:
        # The dead leader is left a zombie until its group is killed: as long as it is one, the group's number cannot
        # be given to somebody else. Whatever it started (loader processes) must not outlive it and keep the device.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL)
        with self._reaping:
            self._process.wait()
        self._gone_at = time.monotonic()
        self._gone.set()

    def _signal(self, signum: signal.Signals) -> None:
        with self._reaping:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signum)

    def _stop_ladder(self, reason: StopReason, grace_s: float) -> None:
        self.send(Stop(reason=reason))
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self._gone.wait(grace_s):
                return
            self._signal(signum)


def trainer_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """The worker's environment without what opens database and store, with what makes runs repeatable."""
    inherited = {name: value for name, value in environment.items() if not name.upper().startswith(_PRIVATE)}
    return inherited | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # A thread that spins at a barrier takes the core from the one it waits for: measured on two cores with other
        # work on them, a step of a small network took 5 to 8 times as long.
        "OMP_WAIT_POLICY": "PASSIVE",
        # cuBLAS is deterministic only with a fixed workspace (its documentation, "Results reproducibility").
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both ends are pipes, see __init__
    return stream
