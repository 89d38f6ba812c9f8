"""What users may do with a job in each state, as data. ``transitions`` applies it; the API lists it in its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from types import MappingProxyType

from service.db.models import Desired, JobState


class Action(StrEnum):
    """What a user asks of a job."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # by an error of its own, or its trainer crashed
    CANCELLED = "cancelled"
    PAUSED = "paused"
    PREEMPTED = "preempted"  # its worker had to stop; costs the job no failure
    LOST = "lost"  # its lease ran out: nobody knows


class ShownStatus(StrEnum):
    """The status that users see: the state, and what a running job is about to become."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """What an action makes of a job. Equal to what the job is already: the action is a harmless repetition."""

    state: JobState
    desired: Desired


_TO_QUEUE = Target(JobState.QUEUED, Desired.RUN)
_TO_PAUSED = Target(JobState.PAUSED, Desired.PAUSE)
_TO_CANCELLED = Target(JobState.CANCELLED, Desired.CANCEL)
# A running job is its owner's: users only say what they want of it.
_GO_ON = Target(JobState.RUNNING, Desired.RUN)
_PAUSE_SOON = Target(JobState.RUNNING, Desired.PAUSE)
_CANCEL_SOON = Target(JobState.RUNNING, Desired.CANCEL)

_IDLE: Mapping[JobState, Mapping[Action, Target]] = {
    JobState.QUEUED: {
        Action.CANCEL: _TO_CANCELLED,
        Action.PAUSE: _TO_PAUSED,
        Action.RESUME: _TO_QUEUE,
        Action.RETRY: _TO_QUEUE,
    },
    JobState.PAUSED: {Action.CANCEL: _TO_CANCELLED, Action.PAUSE: _TO_PAUSED, Action.RESUME: _TO_QUEUE},
    JobState.FAILED: {Action.RETRY: _TO_QUEUE},
    JobState.CANCELLED: {Action.CANCEL: _TO_CANCELLED, Action.RETRY: _TO_QUEUE},
    JobState.SUCCEEDED: {},  # a re-run is a new job
}
_RUNNING: Mapping[Desired, Mapping[Action, Target]] = {
    Desired.RUN: {
        Action.CANCEL: _CANCEL_SOON,
        Action.PAUSE: _PAUSE_SOON,
        Action.RESUME: _GO_ON,
        Action.RETRY: _GO_ON,
    },
    Desired.PAUSE: {Action.CANCEL: _CANCEL_SOON, Action.PAUSE: _PAUSE_SOON, Action.RESUME: _GO_ON},
    Desired.CANCEL: {Action.CANCEL: _CANCEL_SOON},
}

RULES: Mapping[tuple[JobState, Desired], Mapping[Action, Target]] = MappingProxyType(
    {
        (state, desired): _RUNNING[desired] if state is JobState.RUNNING else _IDLE[state]
        for state, desired in product(JobState, Desired)
    }
)
"""Every action that is possible, by state and desired. An action that is absent is refused."""


def useful_actions(state: JobState, desired: Desired) -> tuple[Action, ...]:
    """The actions that would change something, for refusals to list."""
    return tuple(
        action for action, target in RULES[state, desired].items() if (target.state, target.desired) != (state, desired)
    )


def shown_status(state: JobState, desired: Desired) -> ShownStatus:
    """The status that users see."""
    if state is JobState.RUNNING and desired is Desired.CANCEL:
        return ShownStatus.CANCELLING
    if state is JobState.RUNNING and desired is Desired.PAUSE:
        return ShownStatus.PAUSING
    return ShownStatus(state.value)
