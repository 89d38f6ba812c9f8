"""What the API shows of jobs. Rows become models here and nowhere else."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from service.db.models import TERMINAL_STATES, Checkpoint, Desired, Job, JobEvent, JobKind, JobState
from service.ids import IdKind, format_id
from service.jobs.events import EventType
from service.jobs.states import ShownStatus, shown_status
from service.pagination import Page
from service.schemas import Answer, Json, StoredError, UtcTime, example


class WaitReason(StrEnum):
    """Why a queued job does not run yet."""

    NO_WORKER = "no_worker"  # no worker is alive
    NO_MATCHING_DEVICE = "no_matching_device"  # workers are alive, but none serves the job's queue
    WORKER_DEAF = "worker_deaf"  # those that serve its queue live, but the broker's messages do not reach them
    BUSY = "busy"  # every slot for its queue is taken, or kept by jobs before it
    BACKOFF = "backoff"  # it failed and waits before the next attempt
    STARTING = "starting"  # a slot is free: a worker is about to take it


class QueuePlace(Answer):
    """Where a queued job stands."""

    position: int = Field(ge=1, description="1: the next of its queue.")
    reason: WaitReason


class Progress(Answer):
    """Where a job is."""

    stage: str | None = None
    fraction: float | None = Field(None, description="Of the stage, 0 to 1.")
    eta_seconds: float | None = Field(None, description="Of the whole job, as far as known.")
    detail: Json = Field(default_factory=dict, description="Numbers of the stage, such as epoch and loss.")


class Usage(Answer):
    """What the job has used, over all its attempts that ended."""

    device_seconds: float


class Notice(Answer):
    """Something that the user should know and that did not stop the job."""

    code: str
    detail: str
    pointer: str | None = Field(None, description="The field of the spec that it is about.")
    allowed: Any = None


class JobView(Answer):
    """A unit of work."""

    model_config = example(
        {
            "id": "job_01980000000070008000000000000000",
            "kind": "search",
            "name": "masktas on digits",
            "status": "running",
            "done": False,
            "stage": "supernet",
            "progress": {"stage": "supernet", "fraction": 0.25, "eta_seconds": 95.0, "detail": {"epoch": 25}},
            "created_at": "2026-11-30T12:00:00Z",
            "started_at": "2026-11-30T12:00:01Z",
            "heartbeat_at": "2026-11-30T12:01:30Z",
            "finished_at": None,
            "deadline_at": "2026-11-30T13:00:01Z",
            "attempt": 1,
            "queue": None,
            "helpers": 0,
            "usage": {"device_seconds": 0.0},
            "warnings": [],
            "error": None,
            "result": None,
            "stop_reason": None,
            "spec": {"method": "masktas", "dataset": {"id": "digits"}},
            "metadata": {},
            "seed": 0,
            "priority": 0,
            "parent": None,
            "revision": 17,
        }
    )

    id: str
    kind: JobKind
    name: str
    status: ShownStatus
    done: bool = Field(description="True when the status is final.")
    stage: str | None
    progress: Progress | None
    created_at: UtcTime = Field(description="Also when it was queued first.")
    started_at: UtcTime | None = Field(description="Of the first attempt.")
    heartbeat_at: UtcTime | None
    finished_at: UtcTime | None
    deadline_at: UtcTime | None = Field(
        description="While it runs: when its budget of time will be used up if nobody helps it, and the job ends with "
        "the best so far. Null: no limit, or it does not run, which costs nothing."
    )
    attempt: int = Field(description="Number of the latest attempt; 0 before the first.")
    queue: QueuePlace | None = Field(description="Of queued jobs only.")
    helpers: int = Field(description="Other workers that help this search to score now.")
    usage: Usage
    warnings: list[Notice]
    error: StoredError | None
    result: Json | None
    stop_reason: str | None
    spec: Json = Field(description="Effective: every default that is used is in it.")
    metadata: Json
    seed: int
    priority: int
    parent: str | None
    revision: int

    @classmethod
    def of(cls, job: Job, queue: QueuePlace | None, helpers: int) -> Self:
        """Show a row."""
        state = JobState(job.state)
        return cls(
            id=format_id(IdKind.JOB, job.id),
            kind=JobKind(job.kind),
            name=job.name,
            status=shown_status(state, Desired(job.desired)),
            done=state in TERMINAL_STATES,
            stage=job.stage,
            progress=Progress(**{"stage": job.stage, **job.progress}) if job.progress or job.stage else None,
            created_at=job.created_at,
            started_at=job.started_at,
            heartbeat_at=job.heartbeat_at,
            finished_at=job.finished_at,
            deadline_at=job.deadline_at,
            attempt=job.attempts,
            queue=queue,
            helpers=helpers,
            usage=Usage(device_seconds=job.device_seconds),
            warnings=[Notice(**warning) for warning in job.warnings],
            error=StoredError(**job.error) if job.error else None,
            result=job.result,
            stop_reason=job.stop_reason,
            spec=job.spec,
            metadata=job.meta,
            seed=job.seed,
            priority=job.priority,
            parent=format_id(IdKind.JOB, job.parent_id) if job.parent_id else None,
            revision=job.revision,
        )


class JobList(Page[JobView]):
    """Jobs, the newest first."""


class EventView(Answer):
    """An entry of a job's history."""

    id: int = Field(description="Counts from 1 without gaps; what `Last-Event-ID` and `after` take.")
    type: str = Field(description="An open list: ignore types that you do not know.")
    at: UtcTime
    data: Json

    @classmethod
    def of(cls, event: JobEvent, last_seq: int) -> Self:
        """Show a row.

        ``end`` promises that nothing follows, and clients stop reading at it. One that a retry has overtaken is
        shown as what it also is, a statement of the status at that time.
        """
        overtaken = event.type == EventType.END and event.seq < last_seq
        return cls(
            id=event.seq,
            type=EventType.JOB_STATUS.value if overtaken else event.type,
            at=event.at,
            data=event.payload,
        )


class EventList(Page[EventView]):
    """Events, the oldest first."""


class CheckpointView(Answer):
    """A point from which the job can go on."""

    n: int
    stage: str
    created_at: UtcTime
    files: dict[str, str] = Field(description="Digest of each file, by name.")

    @classmethod
    def of(cls, row: Checkpoint) -> Self:
        """Show a row."""
        return cls(n=row.n, stage=row.stage, created_at=row.created_at, files=row.files)


class CheckpointList(Page[CheckpointView]):
    """Checkpoints, the newest first."""


class MetricView(Answer):
    """Numbers that a job reported at a step of a stage."""

    id: int = Field(description="Of the event that told them.")
    at: UtcTime
    stage: str
    step: int
    values: dict[str, float | None] = Field(description="Null where a number was NaN or infinite.")

    @classmethod
    def of(cls, event: JobEvent) -> Self:
        """Show a metric event."""
        return cls(id=event.seq, at=event.at, **event.payload)


class MetricList(Page[MetricView]):
    """Metrics, the oldest first."""
