"""The list of shards that a search and its helpers take from: all SQL, for the supervisors of both.

Nothing is committed here. Each function guards itself by the fence of its caller, and may be repeated when the answer
to a commit was lost: a hand that asks again gets the shard that it holds, and results are read, not consumed. Locks are
taken in the order search, helper, shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, and_, any_, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from service.db.models import TERMINAL_STATES, Job, JobKind, JobState, Worker
from service.db.shard_models import Shard
from service.ids import IdKind, format_id, parse_id
from service.jobs.transitions import enqueue, lock_owned
from service.jobs.values import Lost, NewJob

Json = dict[str, Any]

HELPER_PRIORITY = -1000
"""Below all that users can ask for: a helper never goes before a job of somebody."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who measures a shard: an attempt of a job, and which of its processes."""

    job_id: UUID
    fence: int
    hand: int


@dataclass(frozen=True, slots=True)
class Search:
    """The attempt of a search that a helper works for."""

    job_id: UUID
    fence: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What the search gets: a task, if one is free, and results by number."""

    task: str | None = None
    results: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a helper gets. ``over``: the search needs it no more, or another job needs its slot."""

    task: str | None = None
    over: Literal["search", "slot"] | None = None


def helper_spec(search: Search, machine: Json, files: Sequence[str]) -> Json:
    """The spec of a helper: whom it helps, on what machine, and what it reads of the search's checkpoint."""
    job = format_id(IdKind.JOB, search.job_id)
    return {"search": job, "fence": search.fence, "machine": machine, "files": list(files)}


def search_of(spec: Json) -> Search:
    """Whom the helper with this spec helps."""
    return Search(parse_id(IdKind.JOB, spec["search"]), spec["fence"])


def seek_helpers(session: Session, search: Search, count: int, machine: Json, files: Sequence[str]) -> Lost | None:
    """Queue helpers of a running search until there are ``count`` that have not ended."""
    job = lock_owned(session, search.job_id, search.fence)
    if job is None:
        return Lost()
    alive = select(func.count()).select_from(Job).where(*_helpers_of(job.id), Job.state.not_in(TERMINAL_STATES))
    for k in range(session.scalars(alive).one(), count):
        enqueue(
            session,
            NewJob(
                owner=job.owner,
                kind=JobKind.SCORING,
                name=f"helper {k + 1} of {job.name}",
                spec=helper_spec(search, machine, files),
                queue=job.queue,
                seed=job.seed,
                dataset_id=job.dataset_id,
                parent_id=job.id,
                priority=HELPER_PRIORITY,
            ),
        )
    return None


def offer(session: Session, search: Search, first: int, tasks: Mapping[int, str]) -> Lost | None:
    """Offer shards by number. All before ``first`` are over, and so are those of earlier attempts."""
    if lock_owned(session, search.job_id, search.fence) is None:
        return Lost()
    session.execute(
        delete(Shard)
        .where(Shard.job_id == search.job_id, or_(Shard.fence != search.fence, Shard.n < first))
        .execution_options(synchronize_session=False)
    )
    rows = [{"job_id": search.job_id, "fence": search.fence, "n": n, "task": task} for n, task in tasks.items()]
    session.execute(insert(Shard).on_conflict_do_nothing(), rows)
    return None


def take(
    session: Session, search: Search, hand: int, *, have: Sequence[int], patience_s: float, most_results: int
) -> Turn | Lost:
    """A free shard for the search itself, and results that it does not have.

    Args:
        session: of the supervisor.
        search: the caller.
        hand: which of its processes. Number 0 takes also what somebody has held for longer than ``patience_s``.
        have: numbers that need no result any more.
        patience_s: see there.
        most_results: that fit into an answer.
    """
    if lock_owned(session, search.job_id, search.fence) is None:
        return Lost()
    of_search = (*_of(search), Shard.n.not_in(have))
    found = session.execute(
        select(Shard.n, Shard.result).where(*of_search, Shard.result.is_not(None)).order_by(Shard.n).limit(most_results)
    )
    results = {n: result for n, result in found if result is not None}
    me = Holder(search.job_id, search.fence, hand)
    late = [Shard.taken_at < func.now() - timedelta(seconds=patience_s)] if hand == 0 else []
    free = or_(Shard.holder_id.is_(None), ~_is_at_work())
    order = (_held_by(me).desc().nulls_last(), free.desc(), Shard.n)
    return Turn(_take(session, (*of_search, or_(free, _held_by(me), *late)), order, me), results)


def help_out(
    session: Session,
    helper: Holder,
    search: Search,
    done: tuple[int, str] | None,
    worker_lost_after_s: float,
) -> Grant | Lost:
    """Take in what a helper has measured, and give it a free shard.

    Args:
        session: of the supervisor.
        helper: the caller.
        search: whom it helps.
        done: number and result of its last shard. The first result of a shard stays; all are equal.
        worker_lost_after_s: a worker that has been silent for so long is not counted as one that could run other jobs.
    """
    if lock_owned(session, helper.job_id, helper.fence) is None:
        return Lost()
    if done is not None:
        session.execute(
            update(Shard)
            .where(*_of(search), Shard.n == done[0], Shard.result.is_(None))
            .values(result=done[1])
            .execution_options(synchronize_session=False)
        )
    needed = select(exists().where(Job.id == search.job_id, *_runs(Job, search.fence)))
    if not session.scalar(needed):
        return Grant(over="search")
    if _slot_is_needed(session, helper, worker_lost_after_s):
        return Grant(over="slot")
    free = or_(Shard.holder_id.is_(None), ~_is_at_work(), _held_by(helper))
    return Grant(_take(session, (*_of(search), free), (_held_by(helper).desc().nulls_last(), Shard.n), helper))


def _take(
    session: Session, conditions: Sequence[ColumnElement[bool]], order: Sequence[ColumnElement[Any] | Any], me: Holder
) -> str | None:
    shard = session.scalars(
        select(Shard)
        .where(*conditions, Shard.result.is_(None))
        .order_by(*order)
        .limit(1)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if shard is None:
        return None
    shard.holder_id, shard.holder_fence, shard.hand = me.job_id, me.fence, me.hand
    shard.taken_at = func.now()
    return shard.task


def _slot_is_needed(session: Session, helper: Holder, worker_lost_after_s: float) -> bool:
    """Whether another job waits for this helper's slot: none is idle, and fewer helpers are younger than jobs wait."""
    queue = select(Job.queue).where(Job.id == helper.job_id).scalar_subquery()
    waiting = select(func.count()).where(
        Job.state == JobState.QUEUED,
        Job.queue == queue,
        Job.priority > HELPER_PRIORITY,
        or_(Job.not_before.is_(None), Job.not_before <= func.now()),
    )
    jobs = session.scalars(waiting).one()
    if not jobs:
        return False
    idle = select(func.coalesce(func.sum(Worker.slots - Worker.busy), 0)).where(
        queue == any_(Worker.queues),
        ~Worker.draining,
        Worker.heartbeat_at >= func.now() - timedelta(seconds=worker_lost_after_s),
    )
    if session.scalars(idle).one() > 0:
        return False
    younger = select(func.count()).where(
        Job.kind == JobKind.SCORING, Job.state == JobState.RUNNING, Job.queue == queue, Job.id > helper.job_id
    )
    return session.scalars(younger).one() < jobs


def _helpers_of(job_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return Job.parent_id == job_id, Job.kind == JobKind.SCORING


def _of(search: Search) -> tuple[ColumnElement[bool], ...]:
    return Shard.job_id == search.job_id, Shard.fence == search.fence


def _held_by(holder: Holder) -> ColumnElement[bool]:
    return and_(Shard.holder_id == holder.job_id, Shard.holder_fence == holder.fence, Shard.hand == holder.hand)


def _is_at_work() -> ColumnElement[bool]:
    """Whether the attempt that holds a shard still runs. Of one that is free it says no."""
    holder = aliased(Job)
    return exists().where(holder.id == Shard.holder_id, *_runs(holder, Shard.holder_fence))


def _runs(job: type[Job], fence: Any) -> tuple[ColumnElement[bool], ...]:
    return job.state == JobState.RUNNING, job.fence == fence
