"""PostgreSQL's COPY inside the transaction of a session: many rows at a fraction of what INSERT costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


def copy_rows(session: Session, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Insert rows. They must be new: COPY has no ON CONFLICT, so the caller holds a lock that keeps them so.

    Args:
        rows: values in the order of ``columns``, as psycopg adapts them (JSON as ``Jsonb``).

    Raises:
        sqlalchemy.exc.DBAPIError: of the class that an INSERT would raise.
    """
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
    connection = session.connection()
    driver: Any = connection.connection.driver_connection  # psycopg's own
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        if driver.closed:  # so that nobody tries to roll it back
            connection.invalidate(error)
        # Whoever repeats a transaction while the database is away knows SQLAlchemy's errors only.
        raise DBAPIError.instance(f"COPY {table}", None, error, psycopg.Error, hide_parameters=True) from error
