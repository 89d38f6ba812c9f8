"""The trainer's side of the protocol: what stages say to the supervisor, and how they learn that they must stop."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import BinaryIO

from workers.protocol import Alive, StopReason, TrainerMessage, encode
from workers.shard_messages import ShardAnswer, ShardQuestion


class StopRequested(Exception):
    """Somebody wants the job to stop: write a checkpoint and let this pass. Not an error."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason)


class Channel:
    """Sends messages as lines and holds the wish to stop. Safe to use from several threads.

    Whoever works must use it now and then: that is how a watchdog tells work from a call that never returns.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._writing = threading.Lock()
        self._stop_reason: StopReason | None = None
        self._used_at = time.monotonic()
        self._asking = threading.Lock()
        self._asks = count(1)
        self._answers: queue.SimpleQueue[ShardAnswer] = queue.SimpleQueue()
        self._check_lease: Callable[[], None] = _no_lease

    def guard(self, check_lease: Callable[[], None]) -> None:
        """Call this before anything is sent, and whenever the work looks whether it has to stop."""
        self._check_lease = check_lease

    def send(self, message: TrainerMessage) -> None:
        """Send one message; waits while the supervisor is behind.

        Raises:
            BrokenPipeError: when the supervisor is gone. Nothing that is written after this can be promoted.
        """
        self._used_at = time.monotonic()
        self._write(message)
        self._used_at = time.monotonic()  # it may have waited

    def tell_alive(self) -> None:
        """Let the supervisor know that this process runs, and for how long its work has not used the channel."""
        self._write(Alive(idle_s=self.idle_s))

    @property
    def idle_s(self) -> float:
        """Seconds since the work has sent something or looked whether it has to stop."""
        return time.monotonic() - self._used_at

    def _write(self, message: TrainerMessage) -> None:
        line = encode(message)
        self._check_lease()
        with self._writing:
            self._stream.write(line)
            self._stream.flush()

    def ask(self, question: ShardQuestion) -> ShardAnswer:
        """Send a question and wait for its answer. Whoever asks meanwhile waits for their turn.

        A supervisor that cannot answer, as the database is away, lets the trainer wait; one that is gone ends it.
        """
        with self._asking:
            number = next(self._asks)
            # Only hand 0 is the work that a watchdog watches; threads of other hands must not hide that it hangs.
            send = self._write if question.hand else self.send
            send(question.model_copy(update={"ask": number}))
            while (answer := self._answers.get()).ask != number:
                pass
            return answer

    def deliver(self, answer: ShardAnswer) -> None:
        """The supervisor has answered."""
        self._answers.put(answer)

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
        self._used_at = time.monotonic()
        self._check_lease()
        return self._stop_reason

    def raise_if_stopped(self) -> None:
        """Raise :class:`StopRequested` once a stop was asked for."""
        reason = self.stop_reason
        if reason is not None:
            raise StopRequested(reason)


def _no_lease() -> None:
    """Nobody has told of a lease yet."""
