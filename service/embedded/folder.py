"""The data folder: held by one launcher at a time, and known to be free of an earlier launcher's processes.

Two advisory file locks do it, so nothing depends on process ids that may be stale or used again. ``launcher.lock`` is
held by the launcher alone. ``children.lock`` is open in every child too, and stays locked until the last of them ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from service.embedded.account import Account, blocking_folder
from service.embedded.errors import EmbeddedError, FolderInUse, FolderUnreachable

log = structlog.get_logger(__name__)

STATE_FOLDER = Path("/var/lib/vitailor")
"""Where root's data folders go when they were asked for in a place that the servers' account cannot enter."""

# The kernel's limit for the path of a unix socket, with its final NUL: 108 bytes on Linux, 104 on macOS.
_SOCKET_PATH_BYTES = 103
_LONGEST_SOCKET_NAME = ".s.PGSQL.5432"
# PostgreSQL's clients take a comma for the end of a path, and each URL syntax has its own quoting.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
# Children of a killed launcher get their stop signal from the kernel; a worker needs a while to write its checkpoint.
_ORPHAN_PATIENCE_S = 20.0
_KILL_PATIENCE_S = 5.0
_POLL_S = 0.05


class DataFolder:
    """One data folder, locked by this process while the context is entered.

    Attributes:
        path: its real place.
        logs: one file per child.
        runtime: for the servers' sockets; below the data folder unless its path is too long or odd for a socket.
        lock_fd: the descriptor of ``children.lock``, which every child must inherit.
    """

    path: Path
    logs: Path
    runtime: Path
    lock_fd: int

    def __init__(self, path: Path, account: Account) -> None:
        self._wanted = path
        self._account = account
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> DataFolder:
        """Make and lock the folder, and wait for what an earlier launcher left running.

        Raises:
            FolderInUse: another launcher holds it, or left processes that cannot be ended.
            FolderUnreachable: the servers' account cannot enter it.
            EmbeddedError: it cannot be made or written.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.path = _reachable(self._wanted, self._account)
                self.logs = self.path / "logs"
                self.runtime = _runtime_folder(self.path, self._account)
                self._make()
                stack.enter_context(self._launcher_lock())
                self.lock_fd = stack.enter_context(self._children_lock())
            except OSError as error:
                raise EmbeddedError(f"data folder {self._wanted.absolute()} cannot be used: {error}") from error
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def publish(self, address: dict[str, Any]) -> None:
        """Write ``server.json``, by which the command line finds the running service, until the context ends."""
        target = self.path / "server.json"
        write_private(target, json.dumps(address, indent=2) + "\n")
        self._stack.callback(target.unlink, missing_ok=True)

    def empty_runtime(self) -> None:
        """Make the runtime folder, until the context ends. What a killed launcher left in it is of no use: a stale
        socket lock names a process id that may be used again.

        Raises:
            EmbeddedError: the folder belongs to someone else.
        """
        with contextlib.suppress(FileNotFoundError):
            status = self.runtime.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), self._account.uid):
                raise EmbeddedError(f"{self.runtime} is needed for sockets, but belongs to someone else; remove it")
            shutil.rmtree(self.runtime)
        self.runtime.mkdir(mode=0o700)
        self._account.give(self.runtime, 0o700)
        self._stack.callback(shutil.rmtree, self.runtime, ignore_errors=True)

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._account.is_ours:  # may pass through; what lies inside has modes of its own
            self.path.chmod(stat.S_IMODE(self.path.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)
        blocker = blocking_folder(self.path, self._account)
        if blocker is not None:  # a parent folder, just made under a strict umask
            raise _unreachable(self._wanted, blocker, self._account)
        self.logs.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def _launcher_lock(self) -> Iterator[None]:
        with _opened(self.path / "launcher.lock") as fd:
            if not _try_lock(fd):
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                raise FolderInUse(
                    f"data folder {self._wanted.absolute()} is in use by the launcher with pid {holder}; "
                    "stop that one, or choose another folder with --data"
                )
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield

    @contextlib.contextmanager
    def _children_lock(self) -> Iterator[int]:
        path = self.path / "children.lock"
        with _opened(path) as fd:
            if not _lock_within(fd, _ORPHAN_PATIENCE_S):
                orphans = processes_of(self.path)
                log.warning("orphans_killed", pids=orphans, data_dir=str(self.path))
                for pid in orphans:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if not _lock_within(fd, _KILL_PATIENCE_S):
                    raise FolderInUse(
                        f"processes of an earlier launcher still work in data folder {self._wanted.absolute()} and "
                        f"cannot be ended (pids {processes_of(self.path) or 'unknown'}); end them, then start again"
                    )
            yield fd


def processes_of(data_dir: Path) -> list[int]:
    """Children of any launcher of this folder: all processes but ours that have ``children.lock`` open.

    Sees only processes of the same user unless called by root, and none where there is no ``/proc``.
    """
    try:
        wanted = (data_dir / "children.lock").stat()
    except FileNotFoundError:
        return []
    identity = (wanted.st_dev, wanted.st_ino)
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return sorted(pid for pid in pids if pid != os.getpid() and identity in _open_files(pid))


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # mode 0600
        file.write(text)
    Path(file.name).replace(path)


def _open_files(pid: int) -> Iterator[tuple[int, int]]:
    # A process may end, or belong to someone else, at any of these steps.
    with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError, PermissionError, ProcessLookupError):
                status = entry.stat()
                yield status.st_dev, status.st_ino


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return False
    return True


def _lock_within(fd: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not _try_lock(fd):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _reachable(wanted: Path, account: Account) -> Path:
    """The real place of the data folder: where it was asked for, unless ``account`` cannot get there.

    Root's own folders are usually closed to the account. A data folder that does not exist yet is then made below
    ``STATE_FOLDER``, and a link to it where it was asked for.
    """
    real = wanted.resolve()
    blocker = blocking_folder(real.parent, account)
    if blocker is None:
        return real
    if real.exists():
        raise _unreachable(wanted, blocker, account)
    STATE_FOLDER.mkdir(parents=True, exist_ok=True)
    STATE_FOLDER.chmod(0o711)  # whatever the umask
    made = Path(tempfile.mkdtemp(prefix=f"{real.name}-", dir=STATE_FOLDER))
    real.parent.mkdir(parents=True, exist_ok=True)
    real.symlink_to(made)
    log.warning("data_folder_moved", wanted=str(real), made=str(made), closed=str(blocker), account=account.name)
    return made


def _unreachable(wanted: Path, blocker: Path, account: Account) -> FolderUnreachable:
    return FolderUnreachable(
        f"data folder {wanted.absolute()} lies below {blocker}, which user {account.name!r} cannot enter, and the "
        f"database runs as that user. Choose another folder with --data, such as {STATE_FOLDER / wanted.name}"
    )


def _runtime_folder(data_dir: Path, account: Account) -> Path:
    below = data_dir / "run"
    plain = _PLAIN_PATH.fullmatch(str(below)) is not None
    if plain and len(os.fsencode(below / _LONGEST_SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
        return below
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    return Path("/tmp") / f"vitailor-{account.uid}-{digest}"
