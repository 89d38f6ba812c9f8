"""What a device agent says to the server and hears from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from models.architecture import Architecture
from service.client.records import Record
from service.client.transport import Transport, segment
from workers.latency.measure import Latency

Json = dict[str, Any]


class Session(Record):
    """The right to speak for the agent; it may pass to another process after ``lease_s`` of silence."""

    lease_s: float


class Measuring(Record):
    """How networks are to be measured; ``threads`` None: as many as the agent gives."""

    runtime: str
    precision: str
    batch_size: int
    threads: int | None = None
    percentile: int
    warmup_runs: int
    runs: int
    seed: int


class Order(Record):
    """Networks to measure for a device, by their places."""

    device: str
    name: str
    measuring: Measuring
    architectures: list[Json]


class AgentApi:
    """Requests of one process that speaks for an agent. All of them may be repeated.

    All methods raise ``ApiError`` when the server refuses and ``NoServer`` when nothing answers.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._path = f"/agents/{segment(name)}"
        self._session = uuid4().hex

    def connect(self, machine: Json) -> Session:
        """Speak for the agent from now on."""
        return Session.model_validate(self._say("connect", machine))

    def heartbeat(self) -> None:
        """Renew the lease."""
        self._say("heartbeat", {})

    def disconnect(self) -> None:
        """Let another process speak at once."""
        self._say("disconnect", {})

    def next_order(self, wait_s: int) -> Order | None:
        """What is to be measured; waits up to so many seconds for something."""
        answer = self._say("next", {}, {"Prefer": f"wait={wait_s}"})
        return None if answer["order"] is None else Order.model_validate(answer["order"])

    def begin(self, order: Order, machine: Json, *, cores: int, load: float) -> frozenset[int]:
        """Tell on what is measured, and learn which networks were measured on it before."""
        answer = self._say(self._of(order, "begin"), {"machine": machine, "cores": cores, "load": load})
        return frozenset(answer["known"])

    def send(self, order: Order, networks: Mapping[int, Architecture], taken: Mapping[int, Latency]) -> Json:
        """Tell what networks took."""
        measurements = [{"n": n, "genotype": list(networks[n].genotype), **asdict(taken[n])} for n in taken]
        answer: Json = self._say(self._of(order, "measurements"), {"measurements": measurements})
        return answer

    def give_up(self, order: Order, why: str) -> None:
        """Tell that this machine cannot measure so."""
        self._say(self._of(order, "failure"), {"detail": why})

    def _of(self, order: Order, what: str) -> str:
        return f"orders/{segment(order.device)}/{what}"

    def _say(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Any:
        return self._transport.post(f"{self._path}/{path}", {"session": self._session, **body}, headers)
