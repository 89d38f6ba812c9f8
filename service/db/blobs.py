"""Which blobs of the store rows need, and a lock under which that cannot change between a look and a deletion.

Whoever lets rows name blobs calls :func:`hold_blobs` first in the transaction, and looks whether they are there;
whoever deletes blobs calls :func:`forbid_holding` first, and looks whether rows name them. Neither can overtake the
other.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import String, column, func, select, text, true
from sqlalchemy.orm import Session

from service.db.models import Artifact, Checkpoint, Dataset, Supernet, Teacher

# Names this lock among the advisory locks of a database; any constant will do.
_BLOBS = 0x626C6F6273

# A supernet's row may be older than its files, but those are files of a checkpoint or artifacts as well.
# Longer than any transaction that writes such rows, from its beginning, which is their time, to its commit.
_A_MOMENT = timedelta(hours=1)

_DATABASE_NAME = text(
    "SELECT format('postgresql:%s:%s', system_identifier, oid) "
    "FROM pg_control_system(), pg_database WHERE datname = current_database()"
)


def database_name(session: Session) -> str:
    """A name of this database that no other one has: of its cluster, and in it."""
    return str(session.execute(_DATABASE_NAME).scalar_one())


def hold_blobs(session: Session) -> None:
    """No blob is deleted until the transaction ends. Any number of transactions may hold them at once."""
    session.execute(select(func.pg_advisory_xact_lock_shared(_BLOBS)))


def forbid_holding(session: Session) -> None:
    """Nobody makes rows that name blobs until the transaction ends, which must be soon."""
    session.execute(select(func.pg_advisory_xact_lock(_BLOBS)))


def unneeded(session: Session, digests: Collection[str], *, looked_before: bool = False) -> set[str]:
    """Those of some digests that no row names.

    Args:
        session: any.
        digests: at most a few hundred.
        looked_before: a moment ago no row named them, so that only what was written since has to be read: files of
            checkpoints have no index, and those who wait for the lock should not wait for all of them.
    """
    named: set[str] = set()
    for sha256 in (Artifact.sha256, Dataset.sha256, Teacher.sha256, Supernet.sha256):
        named.update(found for found in session.scalars(select(sha256).where(sha256.in_(digests))) if found)
    for table, files in ((Checkpoint, Checkpoint.files), (Supernet, Supernet.info["files"])):
        entries = func.jsonb_each_text(files).table_valued(column("key"), column("value", String))
        query = select(entries.c.value).select_from(table).join(entries, true()).where(entries.c.value.in_(digests))
        if looked_before:
            query = query.where(table.created_at > func.now() - _A_MOMENT)
        named.update(session.scalars(query))
    return set(digests) - named
