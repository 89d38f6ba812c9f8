"""The exception tree of the service: each class is one thing that a caller can act on.

The API turns a :class:`ServiceError` into an RFC 9457 problem (``service.problems``); a job stores the same record as
its ``error``. Messages name the object, what was found and what is allowed, and say what to do next. Nothing else
reaches a client: the text of other exceptions is logged, never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

MOST_ITEMS = 20
"""More faults than these nobody reads, and whoever sends a document of nothing but faults gets a short answer."""


_LONGEST_VALUE = 80


def shortened(text: str) -> str:
    """What was found, as a message shows it: its beginning, when it is long."""
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


@dataclass(frozen=True, slots=True)
class ErrorItem:
    """One fault inside a request: a JSON pointer, a code, a sentence, and what would have been allowed."""

    pointer: str
    code: str
    detail: str
    allowed: Any = None

    def to_json(self) -> dict[str, Any]:
        """The item as the ``errors[]`` entry of a problem."""
        item = {"pointer": self.pointer, "code": self.code, "detail": self.detail}
        return item if self.allowed is None else {**item, "allowed": self.allowed}


class ServiceError(Exception):
    """Base of all errors with a public face."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[ErrorItem] = (),
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """The stored form of a job's error; the API adds ``instance`` and ``request_id`` to it."""
        return {
            "type": f"urn:vitailor:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retryable,
            "errors": [item.to_json() for item in self.errors],
            **self.extra,
        }


class Malformed(ServiceError):
    """The request is not JSON, or a parameter cannot be read."""

    status, code, title = 400, "malformed", "Malformed request"


class Unauthorized(ServiceError):
    """No key, or a key that is unknown, expired or revoked."""

    status, code, title = 401, "unauthorized", "Missing or invalid API key"


class Forbidden(ServiceError):
    """The key lacks a scope."""

    status, code, title = 403, "forbidden", "Not allowed with this key"


class NotFound(ServiceError):
    """No such object, or it belongs to someone else."""

    status, code, title = 404, "not_found", "Not found"


class MethodNotAllowed(ServiceError):
    """The path exists, but not with this method."""

    status, code, title = 405, "method_not_allowed", "Method not allowed"


class InvalidState(ServiceError):
    """The object's state does not allow the action."""

    status, code, title = 409, "invalid_state", "Not possible in this state"


class AgentTaken(ServiceError):
    """Another process speaks for the device agent and is alive, or was until a moment ago."""

    status, code, title, retryable = 409, "agent_taken", "Another process speaks for this agent", True


class AgentSuperseded(ServiceError):
    """The session is no longer the agent's: another process speaks for it, or its key was changed."""

    status, code, title = 409, "agent_superseded", "The session is over"


class DatasetInUse(ServiceError):
    """Jobs still need the dataset."""

    status, code, title = 409, "dataset_in_use", "The dataset is in use"


class IdempotencyInProgress(ServiceError):
    """The first request with this key still runs."""

    status, code, title, retryable = 409, "idempotency_in_progress", "The first request still runs", True


class PayloadTooLarge(ServiceError):
    """The body exceeds the limit."""

    status, code, title = 413, "payload_too_large", "Request body too large"


class UnsupportedMediaType(ServiceError):
    """The body is not JSON."""

    status, code, title = 415, "unsupported_media_type", "Unsupported media type"


class RangeNotSatisfiable(ServiceError):
    """The Range header lies outside the file."""

    status, code, title = 416, "range_not_satisfiable", "Range not satisfiable"


class ValidationFailed(ServiceError):
    """Fields are unknown, missing or outside what is allowed; ``errors`` points at each, up to :data:`MOST_ITEMS`."""

    status, code, title = 422, "validation_failed", "Validation failed"

    @classmethod
    def of(cls, items: Sequence[ErrorItem], found: int = 0) -> ValidationFailed:
        """The error that tells of these faults in one sentence each.

        Args:
            items: the faults, or the first of them.
            found: how many there are, when ``items`` are not all.
        """
        told = items[:MOST_ITEMS]
        sentences = [f"{item.pointer or 'body'}: {item.detail}." for item in told]
        if untold := max(found, len(items)) - len(told):
            sentences.append(f"There are {untold} more faults.")
        return cls(" ".join(sentences), errors=told)


class ConstraintUnsatisfiable(ServiceError):
    """No network of the space meets the limits; carries the reachable ranges."""

    status, code, title = 422, "constraint_unsatisfiable", "No network of the space meets the limits"


class UnknownWidth(ServiceError):
    """A slimmable network has no such width, or does not offer it; carries the widths that it offers."""

    status, code, title = 422, "unknown_width", "No such width"


class IdempotencyKeyReuse(ServiceError):
    """The key was used before with another body."""

    status, code, title = 422, "idempotency_key_reuse", "Idempotency key was used with another body"


class Unavailable(ServiceError):
    """A server that the request needs does not answer."""

    status, code, title, retryable = 503, "unavailable", "Temporarily unavailable", True


class StorageFull(ServiceError):
    """The store has no room left."""

    status, code, title, retryable = 507, "storage_full", "Storage is full", True


class WorkerLost(ServiceError):
    """Attempts ended without a word: killed, out of memory, or power."""

    code, title, retryable = "worker_lost", "The worker was lost", True


class OutOfMemory(ServiceError):
    """The trainer's memory does not hold what the job needs at once; ``last_known`` tells what it held."""

    code, title, retryable = "out_of_memory", "The trainer ran out of memory", True


class GpuOutOfMemory(OutOfMemory):
    """The same of a device's memory, which other programs may have taken."""

    code, title = "gpu_oom", "The device ran out of memory"


class DeviceHung(ServiceError):
    """The work showed no sign of life for too long: a call into a device hangs, or the process is frozen."""

    code, title, retryable = "device_hung", "The trainer hung", True


class LossDiverged(ServiceError):
    """Training produced NaN or infinity, also from earlier points and with lower learning rates."""

    code, title = "loss_diverged", "Training diverged"


class DatasetInvalid(ServiceError):
    """The dataset cannot be used for this."""

    status, code, title = 422, "dataset_invalid", "The dataset cannot be used"


class SupernetUnavailable(ServiceError):
    """The supernet that a search takes over is gone, or its files are."""

    code, title = "supernet_unavailable", "The supernet cannot be had"


class SearchUnavailable(ServiceError):
    """The stored search that a job goes on with is gone or damaged."""

    code, title = "search_unavailable", "The search cannot be had"


class CheckpointIncompatible(ServiceError):
    """The job's checkpoint is of another version, and cannot be gone on from; ``found`` and ``allowed`` say which."""

    code, title = "checkpoint_incompatible", "The checkpoint is of another version"

    @classmethod
    def of(cls, stage: str, *, found: str, allowed: str) -> CheckpointIncompatible:
        """The error that tells what to do.

        A stage alone cannot begin anew: what it has reported would be there twice.
        """
        detail = (
            f"The checkpoint in stage {stage} is of {found}, and this worker reads {allowed}. Retry the job with a "
            "worker of the version that began it, or do it once more from the beginning with POST /jobs/{id}/replay."
        )
        return cls(detail, extra={"stage": stage, "found": found, "allowed": allowed})


class TeacherInvalid(ServiceError):
    """The weights cannot serve as a teacher; ``keys`` lists every tensor at fault, where the tensors are to blame."""

    status, code, title = 422, "teacher_invalid", "The weights cannot serve as a teacher"


class SupernetInvalid(ServiceError):
    """The file holds no slimmable network; ``keys`` lists every tensor at fault, where the tensors are to blame."""

    status, code, title = 422, "supernet_invalid", "The file holds no slimmable network"


class TeacherUnavailable(ServiceError):
    """The weights cannot be had now: the hub does not answer, or the store has lost them. Nobody tries again alone."""

    code, title, retryable = "teacher_unavailable", "The teacher's weights cannot be had", True


class LatencyUnmeasurable(ServiceError):
    """The machine cannot run the networks in this way, or their times make no table."""

    code, title = "latency_unmeasurable", "The latency cannot be measured"


class NoFeasibleCandidate(ServiceError):
    """The search met no network inside the limits; carries the nearest misses."""

    code, title = "no_feasible_candidate", "No feasible candidate was found"


class ExportParityFailed(ServiceError):
    """The exported files do not give the numbers of the network that was trained."""

    code, title = "export_parity_failed", "The export does not equal the trained network"


class PluginFailed(ServiceError):
    """Code of another package, which brings a metric, does not work."""

    code, title = "plugin_failed", "A plug-in failed"


class BudgetExhausted(ServiceError):
    """The budget ran out before there was anything usable."""

    code, title = "budget_exhausted", "The budget ran out"
