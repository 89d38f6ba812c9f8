"""What the log of a process looks like, from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_PROGRAM = """
import logging
import threading
from uuid import UUID
import structlog
from structlog.contextvars import bound_contextvars
from service.logs import configure_logging

log = structlog.get_logger("before")
configure_logging({arguments})
with bound_contextvars(job_id=UUID(int=7)):
    log.info("job_claimed", fence=3)
    logging.getLogger("library").warning("slow %s", "disk")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("job_broke")
log.debug("too_small_to_tell")
log.info("free_again")
print("stdout is not the log")
"""


def _run(arguments: str = "") -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(arguments=arguments)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)


def _lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stderr.splitlines()]


def test_every_line_is_json_with_the_ids_that_were_bound() -> None:
    result = _run()
    assert result.stdout == "stdout is not the log\n"
    claimed, library, broke, free = _lines(result)
    ids = {"job_id": "00000000-0000-0000-0000-000000000007"}
    assert claimed.items() >= {"event": "job_claimed", "fence": 3, "level": "info", **ids}.items()
    assert library.items() >= {"event": "slow disk", "level": "warning", "logger": "library", **ids}.items()
    assert broke["level"] == "error"
    assert "ZeroDivisionError" in broke["exception"]
    assert "job_id" not in free
    assert free["timestamp"].endswith("Z")


def test_level_decides_what_is_shown() -> None:
    assert [line["event"] for line in _lines(_run("level=logging.ERROR"))] == ["job_broke"]
    assert "too_small_to_tell" in _run("level=logging.DEBUG").stderr


def test_people_get_text() -> None:
    assert "job_claimed" in _run("json_lines=False").stderr
    assert "{" not in _run("json_lines=False").stderr.splitlines()[0]
