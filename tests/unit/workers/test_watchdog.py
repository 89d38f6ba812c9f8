"""The watchdog by itself, with patience of a fraction of a second."""

from __future__ import annotations

import threading
import time

from tests.channels import RecordingChannel
from tests.waiting import wait_until
from workers.protocol import Alive, ErrorMessage, ExitCode
from workers.watchdog import Watchdog

STALL_S = 0.2


class Ended:
    """Stands in for the end of the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.happened = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.happened.set()


def test_work_that_hangs_is_ended_with_a_typed_error() -> None:
    channel, ended = RecordingChannel(), Ended()
    Watchdog(channel, 60.0, STALL_S, ended)
    assert ended.happened.wait(10)
    [message] = channel.of_type(ErrorMessage)
    assert (message.error["code"], message.error["retryable"]) == ("device_hung", True)
    assert ended.codes == [ExitCode.ERROR]


def test_work_that_only_looks_whether_it_has_to_stop_is_alive() -> None:
    channel, ended = RecordingChannel(), Ended()
    began = time.monotonic()
    watchdog = Watchdog(channel, 60.0, STALL_S, ended)
    while time.monotonic() < began + 3 * STALL_S:
        channel.raise_if_stopped()
    watchdog.close()
    assert not ended.happened.is_set()


def test_the_supervisor_hears_of_it_several_times_a_lease_and_how_long_the_work_was_silent() -> None:
    channel, ended = RecordingChannel(), Ended()
    watchdog = Watchdog(channel, lease_s=0.3, stall_s=0.0, end=ended)
    wait_until(lambda: len(channel.of_type(Alive)) >= 4, "four words")
    watchdog.close()
    silences = [message.idle_s for message in channel.of_type(Alive)]
    assert silences == sorted(silences), "saying so is no sign of life of the work"
    assert not ended.happened.is_set(), "without a limit it may hang for ever"
