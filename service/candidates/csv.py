"""Candidates as CSV (RFC 4180), read from the database bit by bit."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from uuid import UUID

from search.measures import FUSED, Measure
from service.candidates.repository import CandidateRepository, Place
from service.candidates.schemas import CandidateView, Order
from service.services import Services

_MEASURES = (*Measure, FUSED)

COLUMNS = (
    "n",
    "id",
    "generation",
    "score",
    "params_m",
    "gmacs",
    "feasible",
    "on_front",
    "rank",
    "val_accuracy",
    "holdout_accuracy",
    "parents",
    "genotype",
    *(f"scores.{name}" for name in _MEASURES),
)

_BATCH = 1000


async def csv_lines(
    parts: Services, owner: str, job_id: UUID, order: Order, feasible: bool | None
) -> AsyncIterator[bytes]:
    """A header line and one line for each candidate. No session is held while the client reads."""
    yield _line(COLUMNS)
    place: Place | None = None
    while True:
        async with parts.sessions() as session:
            rows = await CandidateRepository(session, owner).page(job_id, order, feasible, place, _BATCH)
        yield b"".join(_line(_cells(CandidateView.of(row))) for row in rows)
        if len(rows) < _BATCH:
            return
        place = Place(rows[-1].n, rows[-1].score)


def _cells(view: CandidateView) -> tuple[object, ...]:
    accuracy = view.accuracy or {}
    return (
        view.n,
        view.id,
        view.generation,
        view.score,
        view.costs.get("params_m"),
        view.costs.get("gmacs"),
        str(view.feasible).lower(),
        str(view.on_front).lower(),
        view.rank,
        accuracy.get("val"),
        accuracy.get("holdout"),
        json.dumps(view.parents),
        json.dumps(view.genotype),
        *(view.scores.get(name) for name in _MEASURES),
    )


def _line(cells: tuple[object, ...]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()
