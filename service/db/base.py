"""What the declarations of all tables share: naming, types, and the columns that many have."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, Double, LargeBinary, MetaData, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import UUID as PgUUID
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Json = dict[str, Any]

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def one_of(column: str, values: type[StrEnum]) -> str:
    """The CHECK of a text column that holds one of the values."""
    return f"{column} IN ({', '.join(repr(v.value) for v in values)})"


class Base(DeclarativeBase):
    """Declarative base with named constraints, so that migrations can address each."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this class attribute
        datetime: DateTime(timezone=True),
        Json: JSONB,
        str: Text,
        int: BigInteger,
        bytes: LargeBinary,
        float: Double,
        UUID: PgUUID(as_uuid=True),
    }


def uuid_pk() -> Mapped[UUID]:
    """A primary key that the database gives, in the order of creation."""
    return mapped_column(primary_key=True, server_default=text("uuidv7()"))


def created() -> Mapped[datetime]:
    """When the row was made."""
    return mapped_column(server_default=func.now())
