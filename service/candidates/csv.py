"""Candidates as CSV (RFC 4180), read from the database bit by bit."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Text, case, cast, func

from search.measures import FUSED, Measure
from service.candidates.repository import CandidateFilter, CandidateRepository, Place, figure
from service.candidates.schemas import Axis, Order
from service.db.models import Candidate
from service.ids import format_architecture_id
from service.services import Services

_BATCH = 2000
"""Rows in memory at a time, about a megabyte of text."""


def _columns() -> dict[str, ColumnElement[Any]]:
    """What stands between ``n``, ``id`` and the end of a line. The database writes the texts: it is the faster one."""
    return {
        "generation": Candidate.generation.expression,
        "score": Candidate.score.expression,
        **{axis.value: figure(axis) for axis in Axis if axis is not Axis.SCORE},
        "feasible": _boolean(Candidate.feasible.expression),
        "on_front": _boolean(Candidate.on_front.expression),
        "rank": Candidate.rank.expression,
        "val_accuracy": Candidate.accuracy["val"].astext,
        "holdout_accuracy": Candidate.accuracy["holdout"].astext,
        "parents": cast(func.array_to_json(Candidate.parents), Text),
        "genotype": cast(func.array_to_json(Candidate.genotype), Text),
        **{f"scores.{name}": Candidate.scores[name].astext for name in (*Measure, FUSED)},
    }


async def csv_lines(
    parts: Services, owner: str, job_id: UUID, wanted: CandidateFilter, order: Order
) -> AsyncIterator[bytes]:
    """A header line and one line for each candidate.

    No session is held while the client reads, however slowly: each batch begins in the index where the one before
    ended.
    """
    columns = _columns()
    yield _text([("n", "id", *columns)])
    place: Place | None = None
    while True:
        async with parts.sessions() as session:
            candidates = CandidateRepository(session, owner)
            rows = await candidates.cells(job_id, tuple(columns.values()), wanted, order, place, _BATCH)
        # In a thread, so that other requests are answered meanwhile.
        yield await asyncio.to_thread(_lines, job_id, rows)
        if len(rows) < _BATCH:
            return
        place = Place(rows[-1][0], None if order is Order.N else rows[-1][1])


def _lines(job_id: UUID, rows: Sequence[Sequence[Any]]) -> bytes:
    return _text((n, format_architecture_id(job_id, n), *cells) for n, _, *cells in rows)


def _text(lines: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue().encode()


def _boolean(flag: ColumnElement[bool]) -> ColumnElement[str]:
    return case((flag, "true"), else_="false")
