"""What the functions of ``transitions`` take and give: requests, and every outcome of a race as an ordinary value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from service.db.models import Desired, Job, JobKind, JobState
from service.jobs.states import Action, AttemptOutcome

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a job is made of. ``spec`` is complete: every default that will be used is in it."""

    owner: str
    kind: JobKind
    name: str
    spec: Json
    queue: str
    seed: int
    meta: Json = field(default_factory=dict)
    dataset_id: UUID | None = None
    parent_id: UUID | None = None
    priority: int = 0
    max_failures: int = 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """The action holds. ``changed`` is False when the job was so already."""

    job: Job
    changed: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The job's state does not allow the action; ``allowed`` would change something."""

    job: Job
    action: Action
    allowed: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job that is now the caller's, until its lease runs out."""

    job_id: UUID
    fence: int
    attempt: int
    owner: str
    kind: JobKind
    spec: Json
    seed: int
    dataset_id: UUID | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is no longer the caller's: stop, write nothing."""


@dataclass(frozen=True, slots=True)
class Held:
    """The lease is the caller's, who must do what is desired. ``deadline_passed``: the job's budget is spent."""

    desired: Desired
    deadline_passed: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """How the attempt ended and what became of the job. The same again when the call is repeated."""

    outcome: AttemptOutcome
    state: JobState


@dataclass(frozen=True, slots=True)
class Reaped:
    """A job whose owner's lease ran out. ``fence`` is the one that the owner held."""

    job_id: UUID
    fence: int
    state: JobState
