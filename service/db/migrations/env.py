"""How Alembic runs the migrations: one migrator at a time, and never long in the way of running queries."""

from __future__ import annotations

from alembic import context
from sqlalchemy import NullPool, create_engine, make_url, text

from service.db.engine import ApplicationName, Timeouts, connection_options
from service.db.models import Base
from service.settings import Settings

# Names this project's migration lock among the advisory locks of a database; any constant will do.
MIGRATION_LOCK = 0x56695461696C6F72
# A migration that waits for a lock makes every later query on that table queue behind it: give up early instead.
LOCK_TIMEOUT_S = 4.0
STATEMENT_TIMEOUT_S = 30.0
# How long to wait for another migrator, such as a second replica that starts at the same time.
TURN_TIMEOUT_S = 300.0


def _database_url() -> str:
    url: str | None = context.config.attributes.get("database_url")
    return url if url is not None else Settings().database_url


def _migrate() -> None:
    timeouts = Timeouts(lock_s=TURN_TIMEOUT_S, statement_s=TURN_TIMEOUT_S)
    engine = create_engine(
        make_url(_database_url()),
        poolclass=NullPool,
        connect_args=connection_options(ApplicationName.MIGRATE, timeouts),
    )
    with engine.connect() as connection:
        # Session locks outlive the transactions of the single migrations; closing the connection frees this one.
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'"))
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
            autogenerate_plugins=["alembic.autogenerate.*", "alembic.ext.checkconstraint_byname"],
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    raise SystemExit("offline mode (--sql) is not supported: migrations run against a server, under a lock")
_migrate()
