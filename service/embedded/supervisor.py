"""Keeps groups of children running: starts them in order, restarts those that die, stops them in reverse order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from service.embedded.children import Child, ChildSpec
from service.embedded.errors import ChildFailed

log = structlog.get_logger(__name__)

_TICK_S = 0.1
# A child that dies this often before its first answer has a fault that trying again does not cure.
_START_ATTEMPTS = 3
# Recovery of a big database after a crash may take minutes.
_READY_LIMIT_S = 300.0
_TAIL_LINES = 15


class Supervisor:
    """Owner of the child processes.

    One thread starts and reaps all of them and lives as long as they do, because a child's death signal is bound to
    the *thread* that made it (prctl(2), PR_SET_PDEATHSIG).
    """

    def __init__(self, logs: Path, keep_open: tuple[int, ...] = ()) -> None:
        self._logs = logs
        self._keep_open = keep_open
        self._requests: queue.SimpleQueue[Sequence[Child] | None] = queue.SimpleQueue()
        self._groups: list[Sequence[Child]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded-supervisor", daemon=True)

    def start(self, specs: Sequence[ChildSpec]) -> None:
        """Start a group of children together and return when each is ready.

        Raises:
            ChildFailed: one of them died repeatedly or gave no answer. The caller stops the supervisor.
        """
        group = [Child(spec, self._logs, self._keep_open) for spec in specs]
        if self._thread.ident is None:
            self._thread.start()
        self._requests.put(group)
        deadline = time.monotonic() + _READY_LIMIT_S
        for child in group:
            _wait_ready(child, deadline)

    def stop(self) -> None:
        """Stop all children, the group started last first, and return when none is left.

        An impatient second Ctrl-C does not cut this short: each child's grace time bounds it.
        """
        if self._thread.ident is None:
            return
        self._requests.put(None)
        # Not Thread.join: interrupted, it takes a thread that still runs for ended (python/cpython#90882).
        while not self._ended.is_set():
            try:
                self._ended.wait()
            except KeyboardInterrupt:
                log.warning("still_stopping", children=sorted(self.pids()))

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now, by name."""
        children = [child for group in self._groups for child in group]
        return {child.spec.name: pid for child in children if (pid := child.pid) is not None}

    def _run(self) -> None:
        try:
            while self._take_request():
                for group in self._groups:
                    for child in group:
                        child.tend()
            for group in reversed(self._groups):
                _stop_together(group)
        finally:
            self._ended.set()

    def _take_request(self) -> bool:
        """Wait for a tick at most; False when it is time to stop."""
        try:
            group = self._requests.get(timeout=_TICK_S)
        except queue.Empty:
            return True
        if group is None:
            return False
        self._groups.append(group)
        return True


def _stop_together(group: Sequence[Child]) -> None:
    for child in group:
        child.signal_stop()
    for child in group:
        child.wait_stopped()


def _wait_ready(child: Child, deadline: float) -> None:
    while child.pid is None or not child.spec.ready():
        if child.deaths >= _START_ATTEMPTS:
            raise ChildFailed(
                f"{child.spec.name} ended {child.deaths} times, last with {child.exit_code}{_tail(child)}"
            )
        if time.monotonic() > deadline:
            raise ChildFailed(f"{child.spec.name} gave no answer within {_READY_LIMIT_S:g} s{_tail(child)}")
        time.sleep(_TICK_S)


def _tail(child: Child) -> str:
    lines = child.log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([f"; the end of {child.log_path}:", *(f"  {line}" for line in lines)])
