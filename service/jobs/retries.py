"""Which failed attempts are followed by another one: what a job's spec says of it, read wherever attempts end."""

from __future__ import annotations

from typing import Any, Literal

Json = dict[str, Any]

RetryCode = Literal[
    "worker_lost", "device_hung", "gpu_oom", "out_of_memory", "unavailable", "storage_full", "teacher_unavailable"
]
"""Errors after which another attempt may go better; all others would end the same way again."""

RETRIED_BY_DEFAULT: tuple[RetryCode, ...] = ("worker_lost", "device_hung", "gpu_oom", "out_of_memory", "unavailable")
"""The others wait for somebody who makes room or finds a network, and then asks for ``retry``."""


def retries(spec: Json, code: str) -> bool:
    """Whether a job tries again by itself after an error; jobs without this part of a spec have the defaults."""
    return code in (spec.get("retry") or {}).get("on", RETRIED_BY_DEFAULT)


def most_attempts(spec: Json) -> int | None:
    """How many failed attempts end a job, whatever they achieved; None: any number."""
    limit: int | None = (spec.get("retry") or {}).get("max_attempts")
    return limit
