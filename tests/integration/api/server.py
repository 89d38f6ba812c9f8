"""The API as a process of its own, as the launcher starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.settings import Settings

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @property
    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def mapped_files(self) -> str:
        return Path(f"/proc/{self.process.pid}/maps").read_text()


@contextmanager
def bound_socket() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


@contextmanager
def server(settings: Settings, listener: socket.socket, log: Path) -> Iterator[Server]:
    values = settings.model_dump(mode="json", exclude_none=True)
    env = {**os.environ, **{f"VITAILOR_{name.upper()}": str(value) for name, value in values.items()}}
    fd = listener.fileno()
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.main", "--fd", str(fd)], env=env, pass_fds=(fd,), stderr=output
        )
    host, port = listener.getsockname()
    running = Server(process, f"http://{host}:{port}", log)
    try:
        until(lambda: answers(running), f"an answer; the log says {log.read_text()[-2000:]}")
        yield running
    finally:
        process.kill()
        process.wait()


def answers(running: Server) -> bool:
    assert running.process.poll() is None, running.log.read_text()
    try:
        return httpx.get(f"{running.url}/healthz", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, within reason."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
