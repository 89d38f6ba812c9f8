"""What the API takes from device agents and shows of them.

The machine of an agent is trusted with measuring and with nothing else: every text, list and number is bounded here.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from search.latency import MAX_LABEL, MAX_NS
from service.db.models import Agent
from service.jobs.spec.base import Spec
from service.pagination import Page
from service.schemas import Answer, Json, UtcTime, example

MOST_MEASUREMENTS = 64
"""Networks of one message; an agent has at most sixteen at a time."""

MOST_WARM_UPS = 8
"""Passes of warming up end after so many times those that were asked for."""

_MOST_CORES = 4096

Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
"""A text that is shown to people, on their terminals too: no control characters."""

Nanoseconds = Annotated[int, Field(ge=0, le=MAX_NS)]


class NewAgent(Spec):
    """Let a machine elsewhere measure, under a key that can do nothing else."""

    model_config = example({"key": "vt_Ab3dEf9h_" + "x" * 43})

    key: str = Field(
        min_length=1,
        max_length=200,
        description="A new key, such as `vitailor new-key` prints. It replaces the one that the agent had.",
    )


class AgentView(Answer):
    """A device agent."""

    model_config = example(
        {
            "name": "board",
            "alive": True,
            "lease_until": "2026-11-30T12:01:00Z",
            "seen_at": "2026-11-30T12:00:00Z",
            "info": {"host": "board", "system": "Linux 6.1 aarch64", "cores": 4, "versions": {"torch": "2.10.0"}},
            "created_at": "2026-11-30T11:00:00Z",
        }
    )

    name: str
    alive: bool = Field(description="Whether a process speaks for it and has said so lately.")
    lease_until: UtcTime | None = Field(description="Until when no other process may speak for it.")
    seen_at: UtcTime | None = Field(description="When it was heard of last.")
    info: Json | None = Field(description="What it says of its machine.")
    created_at: UtcTime

    @classmethod
    def of(cls, row: Agent, alive: bool) -> Self:
        """Show a row."""
        return cls(
            name=row.name,
            alive=alive,
            lease_until=row.lease_until,
            seen_at=row.seen_at,
            info=row.info,
            created_at=row.created_at,
        )


class AgentList(Page[AgentView]):
    """Device agents by name."""


class RuntimeVersions(Spec):
    """What is installed where the agent runs; null: nothing."""

    vitailor: Label
    torch: Label | None = None
    onnxruntime: Label | None = None


class InSession(Spec):
    """Base of what the process of an agent says."""

    model_config = example({"session": "0198000000007000800000000000000a"})

    session: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        description="Any 128 bits of the process's choice. Whatever comes with another session is refused.",
    )


class NewSession(InSession):
    """What an agent's process says of itself and its machine when it connects."""

    model_config = example(
        {
            "session": "0198000000007000800000000000000a",
            "host": "board",
            "system": "Linux 6.1 aarch64",
            "cores": 4,
            "versions": {"vitailor": "0.1.0", "torch": "2.10.0"},
        }
    )

    host: Label
    system: Label = Field(description="Operating system and kind of processor.")
    cores: int = Field(ge=1, le=_MOST_CORES)
    versions: RuntimeVersions


class SessionView(Answer):
    """The right to speak for an agent."""

    lease_s: float = Field(description="The session may pass to another process when it is silent for so long.")


class Measuring(Answer):
    """How networks are to be measured, as in `build` of `POST /devices`."""

    runtime: str
    precision: str
    batch_size: int
    threads: int | None = Field(description="Of one operation; null: those that the agent gives.")
    percentile: int
    warmup_runs: int
    runs: int
    seed: int = Field(description="Of arbitrary weights, images, and all orders.")


class Order(Answer):
    """Networks to measure. Their places are their numbers."""

    device: str
    name: str
    measuring: Measuring
    architectures: list[Json] = Field(description="Of all networks of the order, the measured ones too.")


class NextOrder(Answer):
    """What there is to do."""

    order: Order | None


class MeasuredOn(Spec):
    """What all networks of an order are measured on: times of different machines make no table together."""

    device: Label = Field(description="Name of the processor or GPU.")
    threads: int = Field(ge=1, le=_MOST_CORES)
    version: Label = Field(description="Of the runtime.")


class BeginOrder(InSession):
    """The agent is about to measure."""

    model_config = example(
        {
            "session": "0198000000007000800000000000000a",
            "machine": {"device": "Cortex-A76 (4 cores)", "threads": 4, "version": "2.10.0"},
            "cores": 4,
            "load": 0.1,
        }
    )

    machine: MeasuredOn
    cores: int = Field(ge=1, le=_MOST_CORES)
    load: float = Field(ge=0, le=1_000_000, description="Threads that were running just before.")


class BegunOrder(Answer):
    """What need not be measured again."""

    known: list[int]


class Measurement(Spec):
    """What one network took."""

    n: int = Field(ge=0, le=10_000, description="Its number in the order.")
    genotype: list[float] = Field(max_length=600, description="Of the network that was measured.")
    ns: Annotated[int, Field(ge=1, le=MAX_NS)]
    low_ns: Nanoseconds = Field(description="Lower quartile.")
    high_ns: Nanoseconds = Field(description="Upper quartile.")
    runs: int = Field(ge=1, le=10_000)
    warmup_runs: int = Field(ge=0, le=1000 * MOST_WARM_UPS)
    steady: bool
    outliers: int = Field(ge=0, le=10_000)
    anchor_ns: Annotated[int, Field(ge=1, le=MAX_NS)] = Field(
        description="What network 0 took in the same rounds: times of different groups are related by it."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low_ns > self.high_ns:
            raise ValueError("the lower quartile is above the upper one")
        if self.outliers > self.runs:
            raise ValueError("more outliers than calls")
        return self


class NewMeasurements(InSession):
    """What networks of an order took. What was sent before is ignored."""

    model_config = example(
        {
            "session": "0198000000007000800000000000000a",
            "measurements": [
                {
                    "n": 0,
                    "genotype": [1, 2.0, 3, 192],
                    "ns": 4_200_000,
                    "low_ns": 4_100_000,
                    "high_ns": 4_300_000,
                    "runs": 30,
                    "warmup_runs": 5,
                    "steady": True,
                    "outliers": 0,
                    "anchor_ns": 4_200_000,
                }
            ],
        }
    )

    measurements: list[Measurement] = Field(min_length=1, max_length=MOST_MEASUREMENTS)


class OrderProgress(Answer):
    """How far an order is."""

    measured: int
    planned: int
    done: bool = Field(description="Nothing is left to measure.")


class OrderFailure(InSession):
    """The machine cannot measure what was ordered."""

    model_config = example(
        {"session": "0198000000007000800000000000000a", "detail": "onnxruntime is not installed here."}
    )

    detail: str = Field(min_length=1, max_length=2000, description="Why, as a sentence.")
