"""Which blobs of the store rows need, and a lock under which that cannot change between a look and a deletion.

Whoever lets rows name blobs calls :func:`hold_blobs` first in the transaction, and looks whether they are there;
whoever deletes blobs calls :func:`forbid_holding` first, and looks whether rows name them. Neither can overtake the
other.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, String, column, func, select, true
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.orm import Session

from service.db.models import Artifact, Checkpoint, Dataset, Supernet, Teacher

# Names this lock among the advisory locks of a database; any constant will do.
_BLOBS = 0x626C6F6273


def hold_blobs(session: Session) -> None:
    """No blob is deleted until the transaction ends. Any number of transactions may hold them at once."""
    session.execute(select(func.pg_advisory_xact_lock_shared(_BLOBS)))


def forbid_holding(session: Session) -> None:
    """Nobody makes rows that name blobs until the transaction ends, which must be soon."""
    session.execute(select(func.pg_advisory_xact_lock(_BLOBS)))


def unneeded(session: Session, digests: Sequence[str]) -> set[str]:
    """Those of some digests that no row names."""
    if not digests:
        return set()
    asked = select(func.unnest(array(digests, type_=String)).label("sha256")).subquery()
    sha256 = asked.c.sha256
    columns = (Artifact.sha256, Dataset.sha256, Teacher.sha256, Supernet.sha256)
    named: list[ColumnElement[bool]] = [select(1).where(name == sha256).exists() for name in columns]
    for table, files in ((Checkpoint, Checkpoint.files), (Supernet, Supernet.info["files"])):
        entries = func.jsonb_each_text(files).table_valued(column("key"), column("value", String))
        named.append(select(1).select_from(table).join(entries, true()).where(entries.c.value == sha256).exists())
    return set(session.scalars(select(sha256).where(*(~is_named for is_named in named))))
