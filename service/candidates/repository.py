"""Reading candidates. Every statement is limited to one owner's jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Double, Select, and_, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.candidates.schemas import Axis, Order
from service.db.models import Candidate, Job


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of candidates goes on: behind the one with this number and score."""

    n: int
    score: float | None


class CandidateRepository:
    """Candidates of one owner's searches."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _of_job(self, job_id: UUID) -> Select[Candidate]:
        mine = select(Candidate).join(Job, Job.id == Candidate.job_id)
        return mine.where(Job.owner == self._owner, Candidate.job_id == job_id)

    async def get(self, job_id: UUID, n: int) -> Candidate | None:
        """One candidate of a job."""
        return (await self._session.scalars(self._of_job(job_id).where(Candidate.n == n))).one_or_none()

    async def winner(self, job_id: UUID) -> Candidate | None:
        """The best of the retrained candidates, once there is one."""
        return (await self._session.scalars(self._of_job(job_id).where(Candidate.rank == 0))).one_or_none()

    async def page(
        self, job_id: UUID, order: Order, feasible: bool | None, after: Place | None, limit: int
    ) -> Sequence[Candidate]:
        """Candidates in order, those behind ``after``."""
        query = self._of_job(job_id)
        if feasible is not None:
            query = query.where(Candidate.feasible == feasible)
        match order:
            case Order.N:
                query = query.order_by(Candidate.n)
                if after is not None:
                    query = query.where(Candidate.n > after.n)
            case Order.SCORE:
                query = query.where(Candidate.score.is_not(None)).order_by(Candidate.score.desc(), Candidate.n)
                if after is not None:
                    query = query.where(_behind(after))
        return (await self._session.scalars(query.limit(limit))).all()

    async def front(self, job_id: UUID, *, feasible_only: bool) -> Sequence[Candidate]:
        """The front that the search drew over its objectives, by score."""
        query = self._of_job(job_id).where(Candidate.on_front)
        if feasible_only:
            query = query.where(Candidate.feasible)
        return (await self._session.scalars(query.order_by(Candidate.score.desc(), Candidate.n))).all()

    async def front_over(self, job_id: UUID, x: Axis, y: Axis, *, feasible_only: bool) -> Sequence[Candidate]:
        """The front over two figures, along the first; of candidates equal in both, the first evaluated."""
        # Sorted along x (less is better after the sign), a point is on the front exactly when its y is less than
        # that of all points before it: one pass with a running minimum, whatever the number of candidates.
        a, b = _minimised(x), _minimised(y)
        points = select(Candidate.n, a.label("a"), b.label("b")).where(Candidate.job_id == job_id)
        points = points.where(a.is_not(None), b.is_not(None))
        if feasible_only:
            points = points.where(Candidate.feasible)
        p = points.subquery()
        best_before = func.min(p.c.b).over(order_by=(p.c.a, p.c.b, p.c.n), rows=(None, -1))
        swept = select(p.c.n, p.c.a, p.c.b, best_before.label("best_before")).subquery()
        on_front = or_(swept.c.best_before.is_(None), swept.c.b < swept.c.best_before)
        query = self._of_job(job_id).join(swept, and_(swept.c.n == Candidate.n, on_front))
        return (await self._session.scalars(query.order_by(swept.c.a))).all()


def _behind(place: Place) -> ColumnElement[bool]:
    return or_(Candidate.score < place.score, and_(Candidate.score == place.score, Candidate.n > place.n))


def _minimised(axis: Axis) -> ColumnElement[Any]:
    """The figure with the sign that makes less better."""
    figure: ColumnElement[Any] = Candidate.score.expression
    if axis is not Axis.SCORE:
        figure = cast(Candidate.costs[axis.value].astext, Double)
    return -figure if axis.goal == "max" else figure
