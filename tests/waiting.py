"""Waiting for a condition instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, limit_s: float = 20.0, poll_s: float = 0.02) -> T:
    """Ask until the answer is true, and return it.

    Raises:
        TimeoutError: it was not within ``limit_s``.
    """
    give_up_at = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {limit_s:g} s in vain: {what}")
        time.sleep(poll_s)


def is_alive(pid: int) -> bool:
    """Whether the process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"
