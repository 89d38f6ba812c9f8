"""The trainer's side of the protocol: what stages say to the supervisor, and how they learn that they must stop."""

from __future__ import annotations

import threading
from typing import BinaryIO

from workers.protocol import StopReason, TrainerMessage, encode


class StopRequested(Exception):
    """Somebody wants the job to stop: write a checkpoint and let this pass. Not an error."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason)


class Channel:
    """Sends messages as lines and holds the wish to stop. Safe to use from several threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._writing = threading.Lock()
        self._stop_reason: StopReason | None = None

    def send(self, message: TrainerMessage) -> None:
        """Send one message; waits while the supervisor is behind.

        Raises:
            BrokenPipeError: when the supervisor is gone. Nothing that is written after this can be promoted.
        """
        line = encode(message)
        with self._writing:
            self._stream.write(line)
            self._stream.flush()

    def request_stop(self, reason: StopReason) -> None:
        """Ask the stages to stop at their next look.

        The first reason stays, except that a spent budget lets the job finish with what it has, and whatever else
        comes then does not.
        """
        if self._stop_reason in (None, "budget"):
            self._stop_reason = reason

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the job has to stop, None while it may go on."""
        return self._stop_reason

    def raise_if_stopped(self) -> None:
        """Raise :class:`StopRequested` once a stop was asked for."""
        if self._stop_reason is not None:
            raise StopRequested(self._stop_reason)
