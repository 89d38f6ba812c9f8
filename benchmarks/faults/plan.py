"""What will be done to the service and when, as a function of the seed alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    """One kind of fault each."""

    KILL_TRAINER = "SIGKILL of a trainer"
    KILL_WORKER = "SIGKILL of a worker"
    KILL_RELAY = "SIGKILL of a relay"
    KILL_API = "SIGKILL of the API"
    KILL_POSTGRES = "SIGKILL of PostgreSQL"
    KILL_SESSION = "SIGKILL of a database session, which restarts the server"
    KILL_VALKEY = "SIGKILL of Valkey"
    END_WORKER = "SIGTERM to a worker"
    FREEZE_TRAINER = "SIGSTOP of a trainer"
    FREEZE_WORKER = "SIGSTOP of a worker"
    FREEZE_MACHINE = "SIGSTOP of a worker with its trainers"
    FREEZE_RELAY = "SIGSTOP of a relay"
    FREEZE_API = "SIGSTOP of the API"
    FREEZE_POSTGRES = "SIGSTOP of PostgreSQL with its sessions"
    FREEZE_VALKEY = "SIGSTOP of Valkey"
    FLUSH = "flush of the broker"
    RING = "ten doorbells at once"
    CUT_DATABASE = "reset of all database connections"
    MUTE_DATABASE = "database connections that swallow everything"
    DELAY_DATABASE = "database connections with a delay"
    CUT_BROKER = "reset of all broker connections"
    MUTE_BROKER = "broker connections that swallow everything"
    PAUSE = "pause, later resume"
    CANCEL = "cancel, later retry"


_WEIGHTS: Mapping[Fault, int] = {
    Fault.KILL_TRAINER: 14,
    Fault.KILL_WORKER: 7,
    Fault.KILL_RELAY: 4,
    Fault.KILL_API: 3,
    Fault.KILL_POSTGRES: 2,
    Fault.KILL_SESSION: 2,
    Fault.KILL_VALKEY: 3,
    Fault.END_WORKER: 4,
    Fault.FREEZE_TRAINER: 5,
    Fault.FREEZE_WORKER: 6,
    Fault.FREEZE_MACHINE: 4,
    Fault.FREEZE_RELAY: 3,
    Fault.FREEZE_API: 2,
    Fault.FREEZE_POSTGRES: 3,
    Fault.FREEZE_VALKEY: 3,
    Fault.FLUSH: 6,
    Fault.RING: 5,
    Fault.CUT_DATABASE: 6,
    Fault.MUTE_DATABASE: 3,
    Fault.DELAY_DATABASE: 4,
    Fault.CUT_BROKER: 5,
    Fault.MUTE_BROKER: 3,
    Fault.PAUSE: 6,
    Fault.CANCEL: 5,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A fault at a time. ``choice`` in [0, 1) picks the victim among those there are; ``strength`` its length."""

    at_s: float
    fault: Fault
    choice: float
    strength: float


@dataclass(frozen=True, slots=True)
class LightJob:
    """A job of the chain trainer, submitted at ``at_s``. ``cancel_at_s``: for good. ``poisonous``: always crashes."""

    name: str
    at_s: float
    seed: int
    steps: int
    step_s: float
    checkpoint_every: int
    cancel_at_s: float | None = None
    poisonous: bool = False

    @property
    def twin(self) -> tuple[int, int, int]:
        """Jobs that are equal in this end equally."""
        return self.seed, self.steps, self.checkpoint_every


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will be done, in the order of time."""

    moments: tuple[Moment, ...]
    jobs: tuple[LightJob, ...]
    real_at_s: tuple[float, ...]


def make_plan(seed: int, length_s: float, faults: int, jobs: int, real: int) -> Plan:
    """Each kind of fault once, then kinds by weight; times and all else uniform."""
    rng = Random(seed)
    kinds = [*Fault, *rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=max(0, faults - len(Fault)))][:faults]
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0, length_s) for _ in kinds)
    moments = tuple(Moment(at_s, kind, rng.random(), rng.random()) for at_s, kind in zip(times, kinds, strict=True))
    return Plan(
        moments=moments,
        jobs=tuple(_job(rng, number, jobs, length_s) for number in range(jobs)),
        real_at_s=tuple(length_s * 0.6 * (number + 0.5) / real for number in range(real)),
    )


def _job(rng: Random, number: int, jobs: int, length_s: float) -> LightJob:
    # Four shapes, so that few undisturbed twins serve many jobs; the time of a step is no part of a result.
    seed = number % 4
    at_s = length_s * 0.85 * number / jobs
    return LightJob(
        name=f"light-{number}",
        at_s=at_s,
        seed=seed,
        steps=(12, 20, 30, 40)[seed],
        step_s=rng.uniform(0.15, 0.45),
        checkpoint_every=(3, 4, 5, 6)[seed],
        cancel_at_s=at_s + rng.uniform(0, 15) if number % 20 == 7 else None,
        poisonous=number % 25 == 11,
    )
