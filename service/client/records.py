"""What the API answers, as far as a client needs it.

These are a client's records, not the server's schemas: they accept fields and values that a newer server adds, and
keep them, so that ``model_dump`` gives back the whole document.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

Json = dict[str, Any]


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(frozen=True, extra="allow")


T = TypeVar("T", bound=Record)


class ProblemItem(Record):
    """One fault of a request: a JSON pointer into its body, and what would have been allowed."""

    pointer: str = ""
    code: str = ""
    detail: str = ""
    allowed: Any = None


class Problem(Record):
    """An error as the API tells it (RFC 9457): of a request, or of a job that failed."""

    title: str
    status: int = 500
    detail: str = ""
    code: str = ""
    retryable: bool = False
    request_id: str | None = None
    errors: list[ProblemItem] = []


class Progress(Record):
    """Where a job is: ``fraction`` is of the stage, ``eta_seconds`` of the whole job."""

    stage: str | None = None
    fraction: float | None = None
    eta_seconds: float | None = None


class QueuePlace(Record):
    """Where a queued job stands, from 1, and why it waits."""

    position: int
    reason: str


class Notice(Record):
    """Something that a user should know and that did not stop a job."""

    code: str
    detail: str
    pointer: str | None = None


class Job(Record):
    """A unit of work. ``done`` says whether ``status`` is final; ``stage`` and ``status`` are open lists."""

    id: str
    kind: str
    status: str
    done: bool
    name: str | None = None
    stage: str | None = None
    progress: Progress | None = None
    created_at: datetime
    finished_at: datetime | None = None
    queue: QueuePlace | None = None
    warnings: list[Notice] = []
    error: Problem | None = None
    result: Json | None = None
    spec: Json = {}


class Event(Record):
    """An entry of a job's history. ``id`` counts from 1 without gaps; unknown types are to be ignored."""

    id: int
    type: str
    data: Json


class Candidate(Record):
    """A scored architecture of one search. ``rank`` (0 is the winner) and ``accuracy`` are of retrained ones only."""

    id: str
    n: int
    generation: int
    score: float | None = None
    costs: Json
    feasible: bool
    on_front: bool
    rank: int | None = None
    accuracy: Json | None = None


class Artifact(Record):
    """A file that a job made."""

    id: str
    name: str
    kind: str
    size_bytes: int
    sha256: str
    media_type: str
    architecture: str | None = None


class Dataset(Record):
    """Images to search on: built in, or imported by ``job``."""

    id: str
    name: str
    status: str
    version: int | None = None
    classes: list[str] = []
    counts: Json = {}
    job: str | None = None
    error: Problem | None = None


class Teacher(Record):
    """A frozen network that searches can learn from; ``info`` has its licence and where it comes from."""

    id: str
    name: str
    digest: str
    architecture: Json
    info: Json = {}
    job: str | None = None


class DeviceOrder(Record):
    """How many of its networks an agent has measured for a device."""

    measured: int
    planned: int
    lease_until: datetime | None = None


class Device(Record):
    """A latency target; ``setting`` says what was measured and how, once ``status`` is ``ready``."""

    id: str
    name: str
    status: str
    setting: Json | None = None
    error_share: float | None = None
    held_out: int | None = None
    job: str | None = None
    agent: str | None = None
    order: DeviceOrder | None = None
    error: Problem | None = None


class Agent(Record):
    """A machine elsewhere that measures devices; ``info`` is what it says of itself."""

    name: str
    alive: bool
    seen_at: datetime | None = None
    info: Json | None = None


class Space(Record):
    """A named set of architectures; ``costs`` has its ``min``, ``centre`` and ``max``."""

    name: str
    description: str
    size: int
    costs: Json


class Width(Record):
    """A width of a slimmable network; ``offered`` ones can be extracted, ``accuracy`` is on validation images."""

    ratio: float
    width: int
    accuracy: float | None = None
    interpolated: bool = False
    offered: bool = True
    params_m: float | None = None
    gmacs: float | None = None
    weight_mb: float | None = None
    peak_mem_mb: float | None = None


class Supernet(Record):
    """Shared weights of a space, or of a slimmable network with ``widths``, that ``job`` has trained or imported.

    Another search can take them over by ``id``.
    """

    id: str
    job: str
    method: str
    digest: str
    space: Json
    widths: list[Width] = []
    info: Json = {}


class Page(BaseModel, Generic[T]):
    """Part of a list. ``next`` is the cursor of the following part when ``has_more``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    data: list[T]
    has_more: bool = False
    next: str | None = None
