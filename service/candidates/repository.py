"""Reading candidates. Every statement is limited to one owner's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Double, Select, and_, cast, func, literal_column, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from service.candidates.schemas import Axis, Order
from service.db.models import Candidate, FrontMember, Job

Key = ColumnElement[Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page of candidates goes on: behind the one with this number and, unless sorted by it, this key."""

    n: int
    key: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a figure; None leaves a side open. What does not have the figure is out."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFilter:
    """Which candidates of a job to list; None: any."""

    feasible: bool | None = None
    on_front: bool | None = None
    ranges: Mapping[Axis, Range] = field(default_factory=dict)


class CandidateRepository:
    """Candidates of one owner's searches."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _of_job(self, job_id: UUID) -> Select[Candidate]:
        mine = select(Candidate).join(Job, Job.id == Candidate.job_id)
        return mine.where(Job.owner == self._owner, Candidate.job_id == job_id)

    def _listed(self, job_id: UUID) -> Select[Candidate]:
        # Lists show no descriptions, which are most of a row.
        return self._of_job(job_id).options(defer(Candidate.architecture, raiseload=True))

    async def get(self, job_id: UUID, n: int) -> Candidate | None:
        """One candidate of a job."""
        return (await self._session.scalars(self._of_job(job_id).where(Candidate.n == n))).one_or_none()

    async def winner(self, job_id: UUID) -> Candidate | None:
        """The best of the retrained candidates, once there is one."""
        return (await self._session.scalars(self._of_job(job_id).where(Candidate.rank == 0))).one_or_none()

    async def page(
        self, job_id: UUID, wanted: CandidateFilter, order: Order, after: Place | None, limit: int
    ) -> Sequence[Candidate]:
        """Candidates in order, those behind ``after``."""
        query = self.page_query(job_id, wanted, order, after)
        return (await self._session.scalars(query.limit(limit))).all()

    def page_query(self, job_id: UUID, wanted: CandidateFilter, order: Order, after: Place | None) -> Select[Candidate]:
        """The statement behind :meth:`page`, without its limit."""
        return _page(self._listed(job_id), wanted, order, after)

    async def cells(
        self,
        job_id: UUID,
        columns: Sequence[ColumnElement[Any]],
        wanted: CandidateFilter,
        order: Order,
        after: Place | None,
        limit: int,
    ) -> Sequence[Sequence[Any]]:
        """Like :meth:`page`, as rows of the ``columns``, behind ``n`` and the key of the order."""
        place = Candidate.n.label("place_n"), order_key(order).label("place_key")
        labelled = [column.label(f"column_{i}") for i, column in enumerate(columns)]
        query = self._of_job(job_id).with_only_columns(*place, *labelled)
        result = await self._session.execute(_page(query, wanted, order, after).limit(limit))
        rows: Sequence[Sequence[Any]] = result.all()
        return rows

    async def front(self, job_id: UUID, *, feasible_only: bool) -> Sequence[Candidate]:
        """The front that the search drew over its objectives, by score."""
        member = and_(FrontMember.job_id == Candidate.job_id, FrontMember.n == Candidate.n)
        query = self._listed(job_id).join(FrontMember, member)
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
        query = self._listed(job_id).join(swept, and_(swept.c.n == Candidate.n, on_front))
        return (await self._session.scalars(query.order_by(swept.c.a))).all()


def figure(axis: Axis) -> Key:
    """A figure of a candidate, spelled as in the indexes."""
    if axis is Axis.SCORE:
        return Candidate.score.expression
    # A literal and no parameter: a plan for parameters could not use the index on this expression.
    return cast(Candidate.costs.op("->>")(literal_column(f"'{axis.value}'")), Double)


def order_key(order: Order) -> Key:
    """What an order sorts by, ascending; for the order of evaluation it is the number itself."""
    return Candidate.n.expression if order is Order.N else _minimised(Axis(order.value))


def _page(query: Select[Any], wanted: CandidateFilter, order: Order, after: Place | None) -> Select[Any]:
    if wanted.feasible is not None:
        query = query.where(Candidate.feasible if wanted.feasible else ~Candidate.feasible)
    if wanted.on_front is not None:
        query = query.where(Candidate.on_front if wanted.on_front else ~Candidate.on_front)
    for axis, bounds in wanted.ranges.items():
        if bounds.low is not None:
            query = query.where(figure(axis) >= bounds.low)
        if bounds.high is not None:
            query = query.where(figure(axis) <= bounds.high)
    if order is Order.N:
        query = query.order_by(Candidate.n)
        return query if after is None else query.where(Candidate.n > after.n)
    key = order_key(order)
    query = query.where(figure(Axis(order.value)).is_not(None)).order_by(key, Candidate.n)
    return query if after is None else query.where(tuple_(key, Candidate.n) > tuple_(after.key, after.n))


def _minimised(axis: Axis) -> Key:
    """The figure with the sign that makes less better."""
    return -figure(axis) if axis.goal == "max" else figure(axis)
