"""Candidates of an earlier search, which the first generation of another one may start from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from models.architecture import Genotype
from service.db.models import Candidate, Job, JobKind
from service.errors import ErrorItem, ValidationFailed
from service.ids import BadId, IdKind, format_id, parse_id

MOST_CANDIDATES = 10_000
"""So many of the best are looked through for members of the new space within the new limits."""

_NAMED = 20  # as many as help; a user with more searches looks them up
_POINTER = "/search/population_from/job"


async def find_population(session: AsyncSession, owner: str, reference: str) -> list[Genotype]:
    """Genotypes of the best candidates of a search, the best first; of equal scores the earlier comes first.

    Raises:
        ValidationFailed: no such search of a space of architectures.
    """
    searches = select(Job.id).where(
        Job.owner == owner, Job.kind == JobKind.SEARCH, Job.spec["method"].astext == "masktas"
    )
    try:
        job_id = await session.scalar(searches.where(Job.id == parse_id(IdKind.JOB, reference)))
    except BadId:
        job_id = None
    if job_id is None:
        known = (await session.scalars(searches.order_by(Job.id.desc()).limit(_NAMED))).all()
        allowed = [format_id(IdKind.JOB, known_id) for known_id in known]
        detail = f"there is no search {reference!r} of a space of architectures; name one of GET /jobs by its id"
        raise ValidationFailed.of([ErrorItem(_POINTER, "unknown_job", detail, allowed)])
    best = select(Candidate.genotype).where(Candidate.job_id == job_id, Candidate.score.is_not(None))
    rows = await session.scalars(best.order_by(Candidate.score.desc(), Candidate.n).limit(MOST_CANDIDATES))
    return [_genotype(genes) for genes in rows]


def _genotype(genes: Sequence[float]) -> Genotype:
    """From the column, which holds floats alone."""
    depth = int(genes[0])
    return (depth, *genes[1 : 1 + depth], *map(int, genes[1 + depth :]))
