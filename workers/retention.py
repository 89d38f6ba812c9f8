"""Removes blobs from the store that no row needs any more, so that a long job does not fill the disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import structlog
from sqlalchemy.orm import Session, sessionmaker

from service.db.blobs import database_name, forbid_holding, unneeded
from service.store import ArtifactStore

log = structlog.get_logger(__name__)

_AT_A_TIME = 20
"""Promotions wait while these are looked up and deleted."""

MIN_AGE_S = 3600.0
"""What was stored a moment ago belongs to rows that are about to be written."""


def remove_unneeded(sessions: sessionmaker[Session], store: ArtifactStore, digests: Collection[str]) -> int:
    """Delete those of some blobs that no row names. Safe at any time, in any number of processes.

    A store that another database has used is left alone: rows of that one may name blobs that no row here does, be it
    that two services were pointed at one store, or that this database is new and the blobs are all that is left.

    Returns:
        How many were deleted.

    Raises:
        Unavailable: the store does not answer.
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    with sessions() as session:
        mine = database_name(session)
        suspects = unneeded(session, digests)
    if suspects and (owner := store.claim(mine)) != mine:
        log.warning("store_of_another_database", owner=owner, database=mine, kept=len(suspects))
        return 0
    removed, left = 0, iter(sorted(suspects))
    while some := list(islice(left, _AT_A_TIME)):
        with sessions.begin() as session:
            forbid_holding(session)
            for sha256 in unneeded(session, some, looked_before=True):
                store.delete(sha256)
                removed += 1
    return removed


def sweep_blobs(sessions: sessionmaker[Session], store: ArtifactStore, min_age_s: float = MIN_AGE_S) -> int:
    """Delete every blob that is old enough and that no row names: what killed workers and deleted rows have left.

    Returns, Raises:
        As :func:`remove_unneeded`.
    """
    with sessions() as session:
        store.claim(database_name(session))  # before it holds anything that could be another's
    removed = 0
    for some in _batches(store.digests(min_age_s)):
        removed += remove_unneeded(sessions, store, some)
    return removed


def _batches(digests: Iterator[str]) -> Iterator[list[str]]:
    while some := list(islice(digests, 500)):
        yield some
