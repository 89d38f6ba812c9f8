"""Cursor pages: ``{"data": [], "has_more": true, "next": "..."}``, stable while rows are added.

A cursor is the sort key of the last row that was shown, in a form that clients need not understand.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from service.errors import ErrorItem, ValidationFailed

T = TypeVar("T")
Row = TypeVar("Row")

LimitParam = Annotated[int, Query(ge=1, le=100, description="Most entries to return.")]
CursorParam = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]

SequenceNumber = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number inside a cursor, one that the database can compare with."""

Name = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=200)]
"""A text inside a cursor, one that the database can compare with."""

DEFAULT_LIMIT = 20


class Page(BaseModel, Generic[T]):
    """Part of a list."""

    data: list[T]
    has_more: bool
    next: str | None = Field(description="Cursor of the following part: send it as `after`. Null on the last part.")


@dataclass(frozen=True, slots=True)
class Slice(Generic[Row]):
    """Rows of one page, and whether more follow."""

    rows: Sequence[Row]
    has_more: bool

    @classmethod
    def of(cls, rows: Sequence[Row], limit: int) -> Slice[Row]:
        """Cut rows that were asked for with ``limit + 1``."""
        return cls(rows[:limit], len(rows) > limit)


def encode_cursor(*key: Any) -> str:
    """The cursor behind the row with this sort key (JSON values)."""
    text = json.dumps(key, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, shape: type[T]) -> T:
    """The sort key inside a cursor.

    Args:
        cursor: as the client sent it.
        shape: a tuple type, such as ``tuple[UUID]``.

    Raises:
        ValidationFailed: when it is no cursor of this list.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return TypeAdapter(shape).validate_json(text)
    except (binascii.Error, ValueError, ValidationError) as error:
        detail = "this is no cursor of this list"
        raise ValidationFailed(
            f"after: {detail}; send the `next` of the page before, or nothing to start over.",
            errors=[ErrorItem("after", "bad_cursor", detail)],
        ) from error
