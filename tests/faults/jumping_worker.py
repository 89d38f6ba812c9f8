"""The real worker process, whose wall clock is wrong by as many seconds as a file says; the monotonic one goes on."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

OFFSET_FILE = "CLOCK_OFFSET_FILE"

_true_time = time.time


def _offset_s() -> float:
    return float(Path(os.environ[OFFSET_FILE]).read_text())


class _JumpingDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _JumpingDatetime:
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> _JumpingDatetime:
        return cls.now(datetime.UTC).replace(tzinfo=None)


if __name__ == "__main__":
    # Before anything else is imported, which may take the functions out of their modules.
    time.time = lambda: _true_time() + _offset_s()
    time.time_ns = lambda: int(time.time() * 1e9)
    datetime.datetime = _JumpingDatetime  # type: ignore[misc]

    from service.settings import Settings
    from tests.jobs import TRAINER
    from workers.main import run

    raise SystemExit(run(Settings(_env_file=None), TRAINER))
