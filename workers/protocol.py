"""What supervisor and trainer say to each other: one JSON object a line, no other text on these pipes.

Supervisor to trainer (stdin): :class:`Start` once, then :class:`Lease` after each successful heartbeat, and
:class:`Stop`. Trainer to supervisor (stdout): the other messages. The pipe is also a life line: the trainer ends
itself when stdin closes or when the last lease has run out (see ``workers.deadman``), because a frozen supervisor
must not leave a second writer behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from workers.shard_messages import OpenShards, SeekHelpers, ShardAnswer, ShardQuestion

Json = dict[str, Any]
StopReason = Literal["cancel", "pause", "drain", "lease_lost", "budget"]

DATASET_INPUT = "dataset"
"""Name of the dataset's blob among the inputs; a built-in comes without."""

TEACHER_INPUT = "teacher"
"""Name of a registered teacher's weights among the inputs."""

INIT_INPUT = "init"
"""Name of a registered teacher's weights that training starts from, among the inputs."""

SEARCH_INPUT = "search"
"""Name of the file with a search that the job goes on with, among the inputs."""

SEARCH_ARTIFACT = "search"
"""Kind of the artifact that holds all of a search, from which another job may go on."""

DATASET_ARTIFACT = "dataset"
"""Kind of the artifact that holds an imported dataset's blob."""

MOST_ROWS = 200
"""Candidates in one message. A deep network takes a few kilobytes, so a line stays below a megabyte."""

MOST_MOVES = 10_000
"""Candidates that one message lets join or leave the front."""


class ExitCode(IntEnum):
    """How a trainer ends. Any other code is a crash."""

    DONE = 0  # a result was sent
    ERROR = 1  # a typed error was sent
    LEASE_LOST = 70
    STOPPED = 75  # stopped on request, after a checkpoint


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class FileRef(_Message):
    """A file in the run directory that is to be promoted."""

    # What it is called in the checkpoint or among the artifacts; the next attempt finds it in its folder under this.
    name: str = Field(pattern=r"^\w[\w.-]*$")
    path: str  # relative to the run directory
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int


CHECKPOINT_FORMAT = 1
"""Of the states and files of checkpoints. Raised when those of before can no longer be read; they are refused then."""


class Resume(_Message):
    """The checkpoint to go on from; its files already lie in the run directory under their names."""

    stage: str
    state: Json
    files: list[str]


class BlobRef(_Message):
    """A blob of the store that the supervisor has put on local disk for this job, such as the dataset."""

    name: str
    path: str
    sha256: str


class Start(_Message):
    """Everything that the trainer needs to know. It opens no database and no store."""

    type: Literal["start"] = "start"
    job_id: str
    fence: int
    kind: str
    spec: Json
    seed: int
    run_dir: str  # <data_dir>/runs/<job>/<fence>, made by the supervisor, only this attempt writes there
    cache_dir: str  # decoded datasets, shared by jobs of this host
    threads: int
    device: str
    checkpoint_s: float
    lease_s: float
    stall_s: float = 0.0  # without a sign of life of the work for so long, it hangs; 0: it may
    dataset: Json  # name, digest, classes, channels: what the job keeps of its dataset
    teacher: Json = {}  # id, name, digest, architecture, info: of the registered teacher that the job names
    init: Json = {}  # the same of the one whose weights training starts from
    measured: Json = {}  # machine, networks: what a device agent measured, of the job that fits the table to it
    supernet: Json = {}  # id, method, digest, space, info: of the supernet that the job is about
    inputs: list[BlobRef] = []
    adopted: dict[str, Json] = {}  # outputs of stages that are not run, since their files are among the inputs
    import_root: str | None = None
    import_limits: Json = {}  # what an import may take: fields of workers.data.limits.ImportLimits
    resume: Resume | None = None
    helps: Json = {}  # machine: of the search that a helper measures for


class Lease(_Message):
    """The lease was renewed and holds for ``ttl_s`` from now, on the receiver's monotonic clock."""

    type: Literal["lease"] = "lease"
    ttl_s: float


class Stop(_Message):
    """Write a checkpoint and exit with :attr:`ExitCode.STOPPED`."""

    type: Literal["stop"] = "stop"
    reason: StopReason


class Started(_Message):
    """The trainer has its libraries and begins; the versions decide, with spec and seed, what it computes."""

    type: Literal["started"] = "started"
    versions: Json


class Alive(_Message):
    """The process runs, whatever its work does; ``idle_s`` is how long that has shown no sign of life."""

    type: Literal["alive"] = "alive"
    idle_s: float


class Progress(_Message):
    """Where the job is. ``fraction`` is of the stage, ``eta_seconds`` of the whole job as far as known."""

    type: Literal["progress"] = "progress"
    stage: str
    fraction: float = Field(ge=0, le=1)
    eta_seconds: float | None = None
    detail: Json = {}


class Metric(_Message):
    """Numbers with names, at a step of a stage."""

    type: Literal["metric"] = "metric"
    stage: str
    step: int
    values: Json


class Warn(_Message):
    """Something that the user should know and that did not stop the job."""

    type: Literal["warning"] = "warning"
    code: str
    detail: str


class CandidateRow(_Message):
    """One scored architecture. Sent again after a resume with the same content, so inserts are idempotent."""

    n: int
    generation: int
    genotype: list[float]
    parents: list[int]
    score: float | None
    scores: Json = {}
    costs: Json
    feasible: bool
    architecture: Json


class Candidates(_Message):
    """New candidates, and how the front of all so far has moved; what is sent again is harmless.

    A generation may be of any size, so it comes in several messages: see :func:`candidate_messages`.
    """

    type: Literal["candidates"] = "candidates"
    rows: list[CandidateRow] = Field(default=[], max_length=MOST_ROWS)
    joined: list[int] = Field(default=[], max_length=MOST_MOVES)  # n of those that are on the front now
    left: list[int] = Field(default=[], max_length=MOST_MOVES)  # n of those that are no longer
    anew: bool = False  # the front is empty but for those that joined: an attempt says so once, at first


def candidate_messages(
    rows: Sequence[CandidateRow], joined: Sequence[int], left: Sequence[int], *, anew: bool
) -> Iterator[Candidates]:
    """Messages of bounded size. The front moves with the last rows and behind them, since its members must exist.

    Args:
        anew: ``joined`` is the whole front.
    """
    last = max(0, len(rows) - 1) // MOST_ROWS * MOST_ROWS
    for first in range(0, last, MOST_ROWS):
        yield Candidates(rows=list(rows[first : first + MOST_ROWS]))
    for first in range(0, max(len(joined), len(left), 1), MOST_MOVES):
        part, is_first = slice(first, first + MOST_MOVES), first == 0
        message = Candidates(
            rows=list(rows[last:]) if is_first else [],
            joined=list(joined[part]),
            left=list(left[part]),
            anew=anew and is_first,
        )
        if message != _NOTHING:
            yield message


_NOTHING = Candidates()


class Resource(_Message):
    """A teacher or a supernet that exists from this checkpoint on; ``file`` names one of the files beside it."""

    kind: Literal["teacher", "supernet"]
    name: str
    file: str
    info: Json  # teacher: architecture; supernet: method, space


class CheckpointMessage(_Message):
    """A point to resume from. It counts from the moment that the supervisor has promoted it.

    What is sent behind a ``binding`` one may not be recorded unless that was promoted: it holds something that no other
    attempt would find again, such as a measured time.
    """

    type: Literal["checkpoint"] = "checkpoint"
    stage: str
    state: Json
    files: list[FileRef]
    resources: list[Resource] = []
    binding: bool = False


class ArtifactRef(FileRef):
    """A file of the result."""

    kind: str
    media_type: str
    candidate_n: int | None = None


class Accuracy(_Message):
    """What retraining gave for a candidate; ``rank`` 0 is the winner.

    Where latency counts, ``costs`` and ``feasible`` are of the exported network, as it was measured.
    """

    candidate_n: int
    rank: int
    accuracy: Json
    costs: Json = {}
    feasible: bool | None = None


class Result(_Message):
    """The end of a job that succeeded: promoted in the transaction that ends it."""

    type: Literal["result"] = "result"
    result: Json
    stop_reason: str | None = None
    artifacts: list[ArtifactRef]
    accuracies: list[Accuracy] = []
    dataset: Json | None = None  # of an import: classes, counts, image, report; its blob is an artifact
    teacher: Resource | None = None  # of a teacher import; its file is an artifact
    supernet: Resource | None = None  # the same of a supernet import
    latency_table: Json | None = None  # of a measurement: the table of its device


class ErrorMessage(_Message):
    """A typed error, in the form of ``ServiceError.to_json``."""

    type: Literal["error"] = "error"
    error: Json


SupervisorMessage = Start | Lease | Stop | ShardAnswer
TrainerMessage = (
    Started
    | Alive
    | Progress
    | Metric
    | Warn
    | Candidates
    | CheckpointMessage
    | Result
    | ErrorMessage
    | SeekHelpers
    | OpenShards
    | ShardQuestion
)

_TO_TRAINER: TypeAdapter[SupervisorMessage] = TypeAdapter(Annotated[SupervisorMessage, Field(discriminator="type")])
_FROM_TRAINER: TypeAdapter[TrainerMessage] = TypeAdapter(Annotated[TrainerMessage, Field(discriminator="type")])


def encode(message: SupervisorMessage | TrainerMessage) -> bytes:
    """One line, newline included."""
    return message.model_dump_json().encode() + b"\n"


def decode_to_trainer(line: bytes) -> SupervisorMessage:
    """Read one line on the trainer's side. Raises pydantic's ``ValidationError`` on anything else."""
    return _TO_TRAINER.validate_json(line)


def decode_from_trainer(line: bytes) -> TrainerMessage:
    """Read one line on the supervisor's side. Raises pydantic's ``ValidationError`` on anything else."""
    return _FROM_TRAINER.validate_json(line)
