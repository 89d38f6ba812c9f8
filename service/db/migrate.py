"""Brings a database to the newest schema: ``python -m service.db.migrate``, or :func:`upgrade` from code."""

from __future__ import annotations

import argparse
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy.exc import OperationalError

from service.logs import configure_logging
from service.settings import Settings


def alembic_config(database_url: str) -> Config:
    """Alembic's configuration for one database, independent of the working directory."""
    config = Config(Path(__file__).with_name("alembic.ini"))
    config.attributes["database_url"] = database_url
    return config


class UnknownSchema(Exception):
    """The database has a schema that this version of the service does not know."""


def upgrade(database_url: str) -> None:
    """Apply the migrations that are missing. Safe to call from several processes at once.

    Raises:
        UnknownSchema: a newer version of the service has migrated the database.
        sqlalchemy.exc.OperationalError: the server cannot be reached, or a lock was not to be had in time.
    """
    try:
        command.upgrade(alembic_config(database_url), "head")
    except CommandError as error:
        raise UnknownSchema(
            f"the database was migrated by a newer version of vitailor ({error}); install that version"
        ) from error


def main() -> None:
    """Migrate the database of the settings."""
    parser = argparse.ArgumentParser(prog="python -m service.db.migrate", description=main.__doc__)
    parser.parse_args()
    configure_logging()
    try:
        upgrade(Settings().database_url)
    except (UnknownSchema, OperationalError) as error:
        raise SystemExit(f"the database is not migrated: {error}") from error


if __name__ == "__main__":
    main()
