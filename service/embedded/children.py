"""One child process of the launcher: what it is, and how it is started, watched and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from service.embedded import tether
from service.embedded.account import Account

log = structlog.get_logger(__name__)

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
# A child that lived this long was healthy: its next death starts the back-off anew.
HEALTHY_AFTER_S = 60.0
# Keys that the launcher or the command line was given; no child needs them.
_SECRETS = frozenset({"VITAILOR_BOOTSTRAP_KEY", "VITAILOR_API_KEY"})
# Logs are rotated when their child starts; one older file is kept.
LOG_LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process that the launcher keeps running. The same command and environment run bare elsewhere.

    Attributes:
        name: also names its log, ``<name>.log``.
        argv: the command.
        ready: asks the child for a real answer; False while there is none. Called from any thread.
        env: variables on top of the launcher's own, of which children get all but the secret ones.
        account: who runs it; None: the launcher's account.
        pass_fds: descriptors that it inherits.
        stop_signal: asks it to end in order. It also gets this signal when the launcher dies.
        stop_grace_s: seconds from then to SIGKILL.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None
    pass_fds: tuple[int, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0


class Child:
    """A running :class:`ChildSpec`. All methods belong to one thread; others may read the attributes.

    Attributes:
        deaths: how often it ended without being asked to.
        exit_code: of the latest death; negative for a signal.
    """

    def __init__(self, spec: ChildSpec, logs: Path, keep_open: tuple[int, ...]) -> None:
        self.spec = spec
        self.log_path = logs / f"{spec.name}.log"
        self.deaths = 0
        self.exit_code: int | None = None
        self._keep_open = keep_open
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._deaths_in_a_row = 0
        self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it waits for its restart."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def tend(self) -> None:
        """Notice a death, and start the child when its time has come."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self._start()
        elif (code := self._process.poll()) is not None:
            self._process = None
            self._note_death(code)

    def signal_stop(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.send_signal(self.spec.stop_signal)

    def wait_stopped(self) -> None:
        """Wait for its end, and enforce it after the grace time."""
        if self._process is None:
            return
        try:
            self._process.wait(self.spec.stop_grace_s)
        except subprocess.TimeoutExpired:
            log.warning("child_killed", child=self.spec.name, grace_s=self.spec.stop_grace_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start(self) -> None:
        self._rotate_log()
        self._started_at = time.monotonic()
        try:
            with self.log_path.open("ab") as output:
                self._process = subprocess.Popen(
                    self._tethered(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**_shared_environment(), **self.spec.env},
                    pass_fds=(*self.spec.pass_fds, *self._keep_open),
                    umask=0o077,  # others may pass through the data folder, to the servers' files
                    start_new_session=True,  # Ctrl-C in the terminal reaches the launcher only
                )
        except OSError:  # no memory or process table entry left: as transient as a crash
            log.exception("child_not_started", child=self.spec.name)
            self._note_death(os.EX_OSERR)

    def _tethered(self) -> list[str]:
        uid, gid = (self.spec.account.uid, self.spec.account.gid) if self.spec.account else (os.geteuid(), os.getegid())
        ends = [str(os.getpid()), str(int(self.spec.stop_signal)), str(uid), str(gid)]
        return [sys.executable, "-I", "-S", tether.__file__, *ends, *self.spec.argv]

    def _note_death(self, code: int) -> None:
        now = time.monotonic()
        self._deaths_in_a_row = 1 if now - self._started_at > HEALTHY_AFTER_S else self._deaths_in_a_row + 1
        backoff_s = min(FIRST_BACKOFF_S * 2.0 ** (self._deaths_in_a_row - 1), LAST_BACKOFF_S)
        self._start_at = now + backoff_s
        self.exit_code = code
        self.deaths += 1
        log.warning("child_died", child=self.spec.name, exit_code=code, restart_in_s=backoff_s)

    def _rotate_log(self) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))


def _shared_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.upper() not in _SECRETS}
