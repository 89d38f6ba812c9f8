"""Brings a database to the newest schema: ``python -m service.db.migrate``, or :func:`upgrade` from code."""

from __future__ import annotations

import argparse
from pathlib import Path

from alembic import command
from alembic.config import Config

from service.settings import Settings


def alembic_config(database_url: str) -> Config:
    """Alembic's configuration for one database, independent of the working directory."""
    config = Config(Path(__file__).with_name("alembic.ini"))
    config.attributes["database_url"] = database_url
    return config


def upgrade(database_url: str, revision: str = "head") -> None:
    """Apply the migrations that are missing. Safe to call from several processes at once.

    Raises:
        sqlalchemy.exc.OperationalError: the server cannot be reached, or a lock was not to be had in time.
    """
    command.upgrade(alembic_config(database_url), revision)


def main() -> None:
    """Migrate the database of the settings."""
    parser = argparse.ArgumentParser(prog="python -m service.db.migrate", description=main.__doc__)
    parser.add_argument("revision", nargs="?", default="head")
    upgrade(Settings().database_url, parser.parse_args().revision)


if __name__ == "__main__":
    main()
