"""Runs a command that dies with its parent: ``tether.py PARENT_PID SIGNAL UID GID COMMAND [ARGUMENT ...]``.

Started as a program of its own, because this must happen between fork and exec: running Python code there in a process
with threads can deadlock. It uses the standard library only, so that it starts fast without ``site``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _become(uid: int, gid: int) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.chdir("/")  # the account may not be allowed into the launcher's working folder


def _die_with(parent: int, signum: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the request was in place
        raise SystemExit(f"the launcher with pid {parent} has gone")


def main(parent: str, signum: str, uid: str, gid: str, *command: str) -> None:
    """Drop to the account, tie this process to its parent, and become the command."""
    _become(int(uid), int(gid))  # first: a change of user clears the request below
    _die_with(int(parent), int(signum))
    _stop_ignoring_signals()
    os.execvp(command[0], command)


def _stop_ignoring_signals() -> None:
    """Ignored signals stay ignored in the command: two that Python ignores, and whatever nohup or a shell ignored."""
    for signum in signal.valid_signals():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


if __name__ == "__main__":
    main(*sys.argv[1:])
