"""Cursor pages: ``{"data": [], "has_more": true, "next": "..."}``, stable while rows are added.

A cursor is the sort key of the last row that was shown, in a form that clients need not understand.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar
from uuid import UUID

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

    def cursor(self, key: Callable[[Row], tuple[Any, ...]]) -> str | None:
        """Where the next page goes on; None on the last one. ``key`` gives the sort key of a row as JSON values."""
        return encode_cursor(*key(self.rows[-1])) if self.has_more else None


class HasId(Protocol):
    """A row that is ordered by its id."""

    @property
    def id(self) -> Any:
        """A UUID; the type is the mapped attribute's."""


def by_id(row: HasId) -> tuple[str]:
    """The sort key of a row that is ordered by its id."""
    return (row.id.hex,)


def cursor_id(cursor: str | None) -> UUID | None:
    """The id inside a cursor, None without a cursor.

    Raises:
        ValidationFailed: when it is no cursor of this list.
    """
    return None if cursor is None else decode_cursor(cursor, tuple[UUID])[0]


def cursor_number(cursor: str | None) -> int | None:
    """The whole number inside a cursor, None without a cursor.

    Raises:
        ValidationFailed: when it is no cursor of this list.
    """
    return None if cursor is None else decode_cursor(cursor, tuple[SequenceNumber])[0]


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
        raise bad_cursor() from error


def bad_cursor() -> ValidationFailed:
    """The refusal of a text that is no cursor of the list it was sent to."""
    detail = "this is no cursor of this list"
    return ValidationFailed(
        f"after: {detail}; send the `next` of the page before, or nothing to start over.",
        errors=[ErrorItem("after", "bad_cursor", detail)],
    )
