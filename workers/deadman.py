"""Ends a trainer whose supervisor no longer answers for it.

A supervisor that is frozen cannot stop its trainer, and meanwhile the job may run elsewhere. So the trainer must know
by itself when the lease has run out, on its own monotonic clock.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Never

from workers.protocol import ExitCode

SOFT_STOP_AT = 0.75
"""Share of the lease without renewal after which the trainer is asked to write a checkpoint and stop."""

END_AT = 0.92
"""Share after which it ends, whatever it does: well before the database may give the job away."""

BACKSTOP_AT = 0.97
"""Share after which the interpreter's own watchdog ends a process whose Python threads cannot run any more."""


class DeadMan:
    """A thread that acts when renewals stop coming.

    Args:
        lease_s: length of a full lease.
        soft_stop: asks the work to stop in order.
        end: ends the process; called from this object's thread.
        backstop: ends the process after so many seconds unless called again before, even while the interpreter's
            lock is never released.
    """

    def __init__(
        self,
        lease_s: float,
        soft_stop: Callable[[], None],
        end: Callable[[], None],
        backstop: Callable[[float], None],
    ) -> None:
        self._lease_s = lease_s
        self._soft_stop = soft_stop
        self._end = end
        self._backstop = backstop
        self._changed = threading.Condition()
        self._lease_ends_at = 0.0
        self.renew(lease_s)
        threading.Thread(target=self._run, name="deadman", daemon=True).start()

    def renew(self, ttl_s: float) -> None:
        """The lease holds for ``ttl_s`` seconds from now."""
        with self._changed:
            self._lease_ends_at = time.monotonic() + ttl_s
            self._backstop(max(0.1, ttl_s - self._lease_s * (1 - BACKSTOP_AT)))
            self._changed.notify()

    def check(self) -> None:
        """End the process if it is time for that; called by the work itself.

        A process that was frozen for longer than its lease may wake in its work before this object's thread runs, while
        another attempt has long begun.
        """
        if time.monotonic() > self._lease_ends_at - self._lease_s * (1 - END_AT):
            self._end()

    def _run(self) -> None:
        self._wait_for(SOFT_STOP_AT)
        self._soft_stop()
        self._wait_for(END_AT)
        self._end()

    def _wait_for(self, share: float) -> None:
        with self._changed:
            while (left_s := self._lease_ends_at - self._lease_s * (1 - share) - time.monotonic()) > 0:
                self._changed.wait(left_s)


def end_own_group() -> Never:
    """End this process and everything it started, at once.

    Not an exception and not an exit handler: a hung call into a device would never let them run. The group is killed
    only by its leader, which a trainer is.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(ExitCode.LEASE_LOST)
