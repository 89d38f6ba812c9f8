"""A channel for tests of stages: keeps what was sent, decoded from the very bytes a supervisor would read."""

from __future__ import annotations

import io
from typing import TypeVar

from workers.channel import Channel
from workers.protocol import TrainerMessage, decode_from_trainer

M = TypeVar("M")


class RecordingChannel(Channel):
    """Call ``request_stop(reason)`` to play the supervisor."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer)

    @property
    def messages(self) -> list[TrainerMessage]:
        """Everything sent so far, in order."""
        return [decode_from_trainer(line) for line in self._buffer.getvalue().splitlines()]

    def of_type(self, kind: type[M]) -> list[M]:
        """The messages of one class, in order."""
        return [message for message in self.messages if isinstance(message, kind)]
