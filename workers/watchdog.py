"""Ends a trainer whose work hangs: a call into a device that never returns cannot be interrupted, only left behind."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable

from service.errors import DeviceHung
from workers.channel import Channel
from workers.protocol import ErrorMessage, ExitCode

_MOST_S = 10.0
"""Between two words to the supervisor."""

_IN_A_LEASE = 6
"""Words in the time of a lease, after which a supervisor that heard none takes the process for frozen."""


class Watchdog:
    """A thread that tells the supervisor that the process runs, and ends it when its work shows no sign of life.

    Args:
        channel: that the work uses.
        lease_s: how long the supervisor waits for a word.
        stall_s: how long the work may be silent; 0: for ever.
        end: ends the process; called from this object's thread.
    """

    def __init__(self, channel: Channel, lease_s: float, stall_s: float, end: Callable[[int], None] = os._exit) -> None:
        self._channel = channel
        self._stall_s = stall_s
        self._end = end
        self._look_s = min(_MOST_S, lease_s / _IN_A_LEASE, *([stall_s / 4] if stall_s else []))
        self._closing = threading.Event()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """The work is over."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(self._look_s):
            try:
                self._channel.tell_alive()
            except (BrokenPipeError, ValueError):  # the supervisor has gone: that is the dead-man's business
                return
            if self._stall_s and (idle_s := self._channel.idle_s) > self._stall_s:
                self._give_up(idle_s)
                return

    def _give_up(self, idle_s: float) -> None:
        print(f"the work has shown no sign of life for {idle_s:.0f} s:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        error = DeviceHung(
            f"The trainer's work showed no sign of life for {idle_s:.0f} s, which is what VITAILOR_STALL_S allows; "
            "a call into its device or a library hangs. The attempt's log has the stacks of all threads."
        )
        self._channel.send(ErrorMessage(error=error.to_json()))
        self._end(ExitCode.ERROR)
