"""The database: one table per class, PostgreSQL 18 only.

Times are the database's clock (``now()``), never a worker's. States are text with a CHECK instead of an enum type,
because enum changes cannot run inside ordinary migrations.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    exists,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, column_property, mapped_column

from service.db.base import NAMING as NAMING
from service.db.base import Base as Base
from service.db.base import Json, created, one_of, uuid_pk
from service.db.candidate_indexes import candidate_indexes

# Declared apart, and among the tables of whoever imports this module.
from service.db.device_models import Agent as Agent
from service.db.device_models import Device as Device
from service.db.device_models import DeviceNetwork as DeviceNetwork
from service.db.shard_models import Shard as Shard


class JobState(StrEnum):
    """State of a job's row. Only ``service.jobs.transitions`` changes it."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class Desired(StrEnum):
    """What the user wants of a job; the owner of the lease acts on it."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class JobKind(StrEnum):
    """What a job does."""

    SEARCH = "search"
    DATASET_IMPORT = "dataset_import"
    TEACHER_IMPORT = "teacher_import"
    SUPERNET_IMPORT = "supernet_import"
    EXTRACT = "extract"
    TRANSFER = "transfer"
    LATENCY_TABLE = "latency_table"
    SCORING = "scoring"  # helps a search; no user asks for it


class DatasetStatus(StrEnum):
    """Life of a dataset version."""

    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"


class ApiKey(Base):
    """An API key: only its hash is stored."""

    __tablename__ = "api_key"
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    name: Mapped[str]
    prefix: Mapped[str] = mapped_column(unique=True)  # the public part of the key, for finding the row
    sha256: Mapped[bytes]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = created()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class Idempotency(Base):
    """The stored answer of a creating request, so that a repeated request creates nothing."""

    __tablename__ = "idempotency"
    owner: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_sha256: Mapped[bytes]
    created_at: Mapped[datetime] = created()
    status_code: Mapped[int] = mapped_column(Integer)
    headers: Mapped[Json]
    body: Mapped[Json]


class Dataset(Base):
    """One version of a dataset. Built-ins have no row."""

    __tablename__ = "dataset"
    __table_args__ = (
        CheckConstraint(one_of("status", DatasetStatus), name="status"),
        CheckConstraint("status <> 'ready' OR sha256 IS NOT NULL", name="ready_has_blob"),
        UniqueConstraint("owner", "name", "version"),
    )
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    name: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(server_default=DatasetStatus.VALIDATING.value)
    source: Mapped[Json]  # what was asked for: path, format, labels
    sha256: Mapped[str | None]  # digest of the canonical Parquet blob: the dataset's content
    size_bytes: Mapped[int | None]
    classes: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    counts: Mapped[Json] = mapped_column(server_default="{}")
    image: Mapped[Json] = mapped_column(server_default="{}")  # channels, smallest and largest side
    report: Mapped[Json | None]  # findings of the import
    error: Mapped[Json | None]
    created_at: Mapped[datetime] = created()


class Worker(Base):
    """A worker process that said it lives."""

    __tablename__ = "worker"
    name: Mapped[str] = mapped_column(primary_key=True)
    queues: Mapped[list[str]] = mapped_column(ARRAY(Text))
    slots: Mapped[int] = mapped_column(Integer)
    busy: Mapped[int] = mapped_column(Integer)
    draining: Mapped[bool] = mapped_column(server_default="false")
    info: Mapped[Json]  # host, pid, versions, devices
    started_at: Mapped[datetime] = created()
    heartbeat_at: Mapped[datetime] = created()
    deaf: Mapped[bool] = mapped_column(server_default="false")  # it lives, but no message reaches it


class Job(Base):
    """A unit of work that a user asked for; its own outbox (``published_at``)."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint(one_of("state", JobState), name="state"),
        CheckConstraint(one_of("desired", Desired), name="desired"),
        CheckConstraint(one_of("kind", JobKind), name="kind"),
        # Without this, a running row with no lease would never be reaped.
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="running_has_lease"),
        CheckConstraint("(lease_until IS NULL) = (lease_owner IS NULL)", name="lease_has_owner"),
        CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))", name="terminal_is_finished"
        ),
        Index("ix_job_claim", "queue", text("priority DESC"), "id", postgresql_where=text("state = 'queued'")),
        Index("ix_job_lease", "lease_until", postgresql_where=text("state = 'running'")),
        Index("ix_job_owner", "owner", text("id DESC")),
    )
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    kind: Mapped[str]
    name: Mapped[str]
    spec: Mapped[Json]  # effective: every default that was used is in it
    meta: Mapped[Json] = mapped_column(server_default="{}")
    dataset_id: Mapped[UUID | None] = mapped_column(ForeignKey("dataset.id"))
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("job.id"))
    queue: Mapped[str]
    priority: Mapped[int] = mapped_column(Integer, server_default="0")
    seed: Mapped[int]

    state: Mapped[str] = mapped_column(server_default=JobState.QUEUED.value)
    desired: Mapped[str] = mapped_column(server_default=Desired.RUN.value)
    fence: Mapped[int] = mapped_column(server_default="0")
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    failures: Mapped[int] = mapped_column(Integer, server_default="0")  # since the last promoted checkpoint
    max_failures: Mapped[int] = mapped_column(Integer, server_default="3")
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    published_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    last_seq: Mapped[int] = mapped_column(server_default="0")  # of job_event
    revision: Mapped[int] = mapped_column(server_default="0")  # of the row as users see it: the ETag

    stage: Mapped[str | None]
    progress: Mapped[Json] = mapped_column(server_default="{}")
    warnings: Mapped[list[Any]] = mapped_column(JSONB, server_default="[]")
    device_seconds: Mapped[float] = mapped_column(server_default="0")
    result: Mapped[Json | None]
    error: Mapped[Json | None]
    stop_reason: Mapped[str | None]

    created_at: Mapped[datetime] = created()
    started_at: Mapped[datetime | None]  # of the first attempt
    heartbeat_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Attempt(Base):
    """One claim of a job by a worker."""

    __tablename__ = "attempt"
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    worker: Mapped[str]
    info: Mapped[Json] = mapped_column(server_default="{}")  # host, device, threads, versions, resumed checkpoint
    started_at: Mapped[datetime] = created()
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    exit_code: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[Json | None]


class JobEvent(Base):
    """Append-only history of a job. ``seq`` is counted under the job row's lock, so readers never skip one."""

    __tablename__ = "job_event"
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    fence: Mapped[int]
    at: Mapped[datetime] = created()
    type: Mapped[str]
    payload: Mapped[Json]


class Checkpoint(Base):
    """A promoted point from which a job can go on. ``files`` maps names to digests in the store."""

    __tablename__ = "checkpoint"
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    n: Mapped[int] = mapped_column(primary_key=True)
    fence: Mapped[int]
    stage: Mapped[str]
    state: Mapped[Json]
    files: Mapped[Json]
    created_at: Mapped[datetime] = created()


class Teacher(Base):
    """A frozen network that students learn from."""

    __tablename__ = "teacher"
    __table_args__ = (UniqueConstraint("job_id"),)
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    name: Mapped[str]
    sha256: Mapped[str]
    architecture: Mapped[Json]
    info: Mapped[Json]
    created_at: Mapped[datetime] = created()


class Supernet(Base):
    """Shared weights of a space, trained by a job."""

    __tablename__ = "supernet"
    __table_args__ = (UniqueConstraint("job_id"),)
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    method: Mapped[str]
    space: Mapped[Json]
    sha256: Mapped[str]
    info: Mapped[Json]
    created_at: Mapped[datetime] = created()


class FrontMember(Base):
    """A candidate on the Pareto front of its search.

    A table of its own: the front moves with every generation, and a changed candidate would be written anew with all
    its index entries.
    """

    __tablename__ = "front_member"
    __table_args__ = (ForeignKeyConstraint(["job_id", "n"], ["candidate.job_id", "candidate.n"], ondelete="CASCADE"),)
    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    n: Mapped[int] = mapped_column(Integer, primary_key=True)


class Candidate(Base):
    """A scored architecture of one search. ``n`` is the order of evaluation, from 0."""

    __tablename__ = "candidate"
    __table_args__ = (UniqueConstraint("job_id", "genotype"), *candidate_indexes())
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)
    n: Mapped[int] = mapped_column(Integer, primary_key=True)
    generation: Mapped[int] = mapped_column(Integer)
    genotype: Mapped[list[float]] = mapped_column(ARRAY(Double))
    parents: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    score: Mapped[float | None]
    scores: Mapped[Json] = mapped_column(server_default="{}")
    costs: Mapped[Json]
    feasible: Mapped[bool]
    rank: Mapped[int | None] = mapped_column(Integer)  # place among the retrained networks, 0 is the winner
    architecture: Mapped[Json]
    accuracy: Mapped[Json | None]  # val, holdout; only of retrained networks
    on_front: Mapped[bool] = column_property(
        exists().where(FrontMember.job_id == job_id, FrontMember.n == n).correlate_except(FrontMember)
    )


class Artifact(Base):
    """A promoted file of a job; its bytes lie in the store under ``sha256``."""

    __tablename__ = "artifact"
    __table_args__ = (
        UniqueConstraint("job_id", "candidate_n", "name", postgresql_nulls_not_distinct=True),
        ForeignKeyConstraint(["job_id", "candidate_n"], ["candidate.job_id", "candidate.n"], ondelete="CASCADE"),
        Index("ix_artifact_sha256", "sha256"),
    )
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"))
    candidate_n: Mapped[int | None] = mapped_column(Integer)  # None: of the job as a whole
    fence: Mapped[int]
    name: Mapped[str]
    kind: Mapped[str]
    media_type: Mapped[str]
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    created_at: Mapped[datetime] = created()
