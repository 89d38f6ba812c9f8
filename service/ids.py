"""Typed ids: a prefix that names the resource and the 32 hex digits of a UUID (version 7, made by PostgreSQL).

An id of the wrong kind is refused when it is parsed, so a job id can never be looked up as a dataset.
"""

from __future__ import annotations

import re
from enum import StrEnum
from uuid import UUID


class IdKind(StrEnum):
    """The prefix of each resource's public id."""

    JOB = "job"
    DATASET = "ds"
    SUPERNET = "sn"
    ARTIFACT = "art"
    TEACHER = "tch"
    DEVICE = "dev"


class BadId(ValueError):
    """The text is not an id of the wanted kind."""

    def __init__(self, text: str, kind: IdKind) -> None:
        self.text = text
        self.kind = kind
        super().__init__(f"{text!r} is not a {kind.name.lower()} id; one looks like {kind}_0193...(32 hex digits)")


_HEX = re.compile(r"[0-9a-f]{32}")
_ARCHITECTURE = re.compile(r"arch_([0-9a-f]{32})_([0-9]{1,9})")


def format_id(kind: IdKind, value: UUID) -> str:
    """The public form of a row's UUID, such as ``job_0193...``."""
    return f"{kind}_{value.hex}"


def parse_id(kind: IdKind, text: str) -> UUID:
    """The UUID behind a public id.

    Raises:
        BadId: when prefix or digits are not those of ``kind``.
    """
    prefix, _, digits = text.partition("_")
    if prefix != kind or not _HEX.fullmatch(digits):
        raise BadId(text, kind)
    return UUID(hex=digits)


def format_architecture_id(job_id: UUID, n: int) -> str:
    """The public id of candidate ``n`` of a job: an architecture is a candidate of exactly one search."""
    return f"arch_{job_id.hex}_{n}"


def parse_architecture_id(text: str) -> tuple[UUID, int] | None:
    """The job and candidate number behind an architecture id, None when the text is not one."""
    match = _ARCHITECTURE.fullmatch(text)
    return (UUID(hex=match[1]), int(match[2])) if match else None
