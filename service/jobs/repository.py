"""Reading jobs. Every statement is limited to one owner: what is not theirs does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.db.models import (
    TERMINAL_STATES,
    Checkpoint,
    Desired,
    Job,
    JobEvent,
    JobKind,
    JobState,
    Worker,
)
from service.jobs.events import EventType
from service.jobs.schemas import QueuePlace, WaitReason
from service.jobs.states import ShownStatus

_Child = TypeVar("_Child", Checkpoint, JobEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs of an owner to list; None: any, but of kinds those that users ask for."""

    status: ShownStatus | None = None
    kind: JobKind | None = None
    created_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Some events of a job and how things stood when they were read."""

    events: Sequence[JobEvent]
    last_seq: int
    is_terminal: bool

    @property
    def is_over(self) -> bool:
        """True when these are the last events and no more can come unless the job is tried again."""
        return self.is_terminal and (not self.events or self.events[-1].seq >= self.last_seq)


class JobRepository:
    """Jobs of one owner and what belongs to them."""

    def __init__(self, session: AsyncSession, owner: str) -> None:
        self._session = session
        self._owner = owner

    def _mine(self) -> Select[Job]:
        return select(Job).where(Job.owner == self._owner)

    def _of_job(self, child: type[_Child], job_id: UUID) -> Select[_Child]:
        return select(child).join(Job, Job.id == child.job_id).where(Job.owner == self._owner, Job.id == job_id)

    async def get(self, job_id: UUID) -> Job | None:
        """The job as it is now, not as an earlier query saw it."""
        query = self._mine().where(Job.id == job_id).execution_options(populate_existing=True)
        return (await self._session.scalars(query)).one_or_none()

    async def page(self, wanted: JobFilter, before: UUID | None, limit: int) -> Sequence[Job]:
        """Jobs from the newest to the oldest, those made before the job ``before``."""
        query = self._mine()
        if wanted.status is not None:
            query = query.where(*_has_status(wanted.status))
        # Helpers belong to a search, which counts them; nobody has asked for them.
        query = query.where(Job.kind != JobKind.SCORING if wanted.kind is None else Job.kind == wanted.kind)
        if wanted.created_after is not None:
            query = query.where(Job.created_at > wanted.created_after)
        if before is not None:
            query = query.where(Job.id < before)
        return (await self._session.scalars(query.order_by(Job.id.desc()).limit(limit))).all()

    async def helper_counts(self, jobs: Sequence[Job]) -> dict[UUID, int]:
        """How many workers help each of the searches that run, other than their own."""
        running = [job.id for job in jobs if job.kind == JobKind.SEARCH and job.state == JobState.RUNNING]
        if not running:
            return {}
        query = (
            select(Job.parent_id, func.count())
            .where(Job.parent_id.in_(running), Job.kind == JobKind.SCORING, Job.state == JobState.RUNNING)
            .group_by(Job.parent_id)
        )
        return {parent: count for parent, count in await self._session.execute(query) if parent is not None}

    async def queue_places(self, jobs: Sequence[Job], worker_lost_after_s: float) -> dict[UUID, QueuePlace]:
        """Where those of the jobs that are queued stand among the jobs of all owners, and why they wait."""
        queued = [job for job in jobs if job.state == JobState.QUEUED]
        if not queued:
            return {}
        position = func.row_number().over(partition_by=Job.queue, order_by=(Job.priority.desc(), Job.id))
        line = (
            select(Job.id, position.label("position"), (Job.not_before > func.now()).label("backs_off"))
            .where(Job.state == JobState.QUEUED, Job.queue.in_({job.queue for job in queued}))
            .subquery()
        )
        places = (await self._session.execute(select(line).where(line.c.id.in_([job.id for job in queued])))).all()
        idle = await self._idle_slots(worker_lost_after_s)
        queues = {job.id: job.queue for job in queued}
        return {
            job_id: QueuePlace(position=place, reason=_wait_reason(bool(backs_off), queues[job_id], place, idle))
            for job_id, place, backs_off in places
        }

    async def _idle_slots(self, worker_lost_after_s: float) -> dict[str, int | None]:
        """Free slots for each queue that a living worker serves, None where all of these are deaf."""
        alive = Worker.heartbeat_at > func.now() - timedelta(seconds=worker_lost_after_s)
        query = select(Worker.queues, Worker.slots, Worker.busy, Worker.draining, Worker.deaf).where(alive)
        idle: dict[str, int | None] = {}
        for queues, slots, busy, draining, deaf in await self._session.execute(query):
            for queue in queues:
                if deaf:
                    idle.setdefault(queue, None)
                else:
                    idle[queue] = (idle.get(queue) or 0) + (0 if draining else max(0, slots - busy))
        return idle

    async def history(self, job_id: UUID, after: int, limit: int) -> History:
        """At most ``limit`` events with a number above ``after``. A job that does not exist has a history of none."""
        # The job first: events that come in between the two reads are then merely not the last ones.
        query = select(Job.last_seq, Job.state).where(Job.owner == self._owner, Job.id == job_id)
        row = (await self._session.execute(query)).one_or_none()
        if row is None:
            return History((), 0, is_terminal=True)
        query_events = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after)
        events = (await self._session.scalars(query_events.order_by(JobEvent.seq).limit(limit))).all()
        last_seq = max(row.last_seq, events[-1].seq if events else 0)
        return History(events, last_seq, row.state in TERMINAL_STATES)

    async def metrics(self, job_id: UUID, stage: str | None, after: int, limit: int) -> Sequence[JobEvent]:
        """Metric events with a number above ``after``, in order."""
        query = self._of_job(JobEvent, job_id).where(JobEvent.type == EventType.METRIC, JobEvent.seq > after)
        if stage is not None:
            query = query.where(JobEvent.payload["stage"].astext == stage)
        return (await self._session.scalars(query.order_by(JobEvent.seq).limit(limit))).all()

    async def checkpoints(self, job_id: UUID, before: int | None, limit: int) -> Sequence[Checkpoint]:
        """Checkpoints from the newest to the oldest, those with a number below ``before``."""
        query = self._of_job(Checkpoint, job_id)
        if before is not None:
            query = query.where(Checkpoint.n < before)
        return (await self._session.scalars(query.order_by(Checkpoint.n.desc()).limit(limit))).all()


def _has_status(status: ShownStatus) -> tuple[ColumnElement[bool], ...]:
    """The inverse of :func:`service.jobs.states.shown_status`, for WHERE."""
    match status:
        case ShownStatus.RUNNING:
            return Job.state == JobState.RUNNING, Job.desired == Desired.RUN
        case ShownStatus.PAUSING:
            return Job.state == JobState.RUNNING, Job.desired == Desired.PAUSE
        case ShownStatus.CANCELLING:
            return Job.state == JobState.RUNNING, Job.desired == Desired.CANCEL
        case _:
            return (Job.state == JobState(status.value),)


def _wait_reason(backs_off: bool, queue: str, position: int, idle: dict[str, int | None]) -> WaitReason:
    if not idle:
        return WaitReason.NO_WORKER
    if queue not in idle:
        return WaitReason.NO_MATCHING_DEVICE
    if backs_off:
        return WaitReason.BACKOFF
    slots = idle[queue]
    if slots is None:
        return WaitReason.WORKER_DEAF
    return WaitReason.STARTING if position <= slots else WaitReason.BUSY
