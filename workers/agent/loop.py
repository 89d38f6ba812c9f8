"""The loop of a device agent: ask for an order, measure, send; through lost connections, until it is told to stop."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Never, TypeVar

import structlog
import torch

from models.architecture import Architecture
from search.latency import MAX_LABEL, Precision, Runtime
from service.client.errors import ApiError, ClientError, is_temporary
from workers.agent.api import AgentApi, Json, Order
from workers.latency.execution import Execution, NotExecutable, runtime_version
from workers.latency.measure import Timing
from workers.latency.networks import measure_networks

log = structlog.get_logger(__name__)

_WAIT_S = 30
_LONGEST_PAUSE_S = 30.0
_LONGEST_WHY = 1000

_BEATS_IN_A_LEASE = 3

_GONE = ("not_found", "invalid_state")
"""Refusals that are about the order alone: it was deleted, given up, or is complete."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Means:
    """What an agent measures with.

    Attributes:
        device: of torch.
        threads: of one operation, unless an order says otherwise.
        scratch: an existing folder for files that are needed meanwhile.
    """

    device: torch.device
    threads: int
    scratch: Path


class Agent:
    """One agent. Keeps nothing between orders: the server knows what was measured.

    Args:
        api: speaks for the agent.
        means: what it measures with.
        sleep: how to wait; a seam for tests.
    """

    def __init__(self, api: AgentApi, means: Means, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self._means = means
        self._sleep = sleep
        self._lease_s = 0.0
        self._said_at = 0.0

    def run(self) -> Never:
        """Measure until interrupted; then let another process speak for the agent at once.

        Raises:
            ApiError: the key, the name or the session is refused.
        """
        try:
            while True:
                self.run_once()
        finally:
            if self._lease_s:
                self._disconnect()

    def run_once(self) -> None:
        """Connect if that is to be done, wait for an order for a while, and measure it.

        Raises:
            ApiError: the key, the name or the session is refused.
        """
        if not self._lease_s:
            self._lease_s = self._persist(lambda: self._api.connect(describe_machine())).lease_s
            log.info("agent_connected", lease_s=self._lease_s)
        order = self._persist(lambda: self._api.next_order(_WAIT_S))
        if order is None:
            return
        try:
            self._measure(order)
        except ApiError as error:
            if error.problem.code == "validation_failed":  # versions of agent and server that do not fit
                self._give_up(order, f"the server refuses what was measured: {error.problem.detail}")
            elif error.problem.code in _GONE:
                log.info("order_gone", device=order.device, why=error.problem.detail)
            else:
                raise
        except ClientError:
            raise
        except Exception as error:
            # Whatever the machine cannot do is told to who ordered it, and the next order may go well.
            log.exception("order_failed", device=order.device)
            self._give_up(order, f"{type(error).__name__}: {error}")

    def _measure(self, order: Order) -> None:
        networks = {n: Architecture.from_json(document) for n, document in enumerate(order.architectures)}
        asked = order.measuring
        try:
            execution = Execution(
                runtime=Runtime(asked.runtime),
                precision=Precision(asked.precision),
                batch_size=asked.batch_size,
                threads=asked.threads or self._means.threads,
                device=self._means.device,
            )
        except NotExecutable as error:
            self._give_up(order, f"{error}.")
            return
        machine = {
            "device": _label(execution.label),
            "threads": execution.threads,
            "version": _label(runtime_version(execution.runtime) or ""),
        }
        load = os.getloadavg()[0]
        known = self._persist(lambda: self._api.begin(order, machine, cores=os.cpu_count() or 1, load=load))
        log.info("order_begun", device=order.device, name=order.name, networks=len(networks), known=len(known))
        timing = Timing(percentile=asked.percentile, warmup_runs=asked.warmup_runs, runs=asked.runs)
        for taken in measure_networks(
            list(networks.values()),
            execution,
            timing,
            asked.seed,
            self._means.scratch,
            known=known,
            poll=self._keep_alive,
        ):
            answer = self._persist(lambda taken=taken: self._api.send(order, networks, taken))  # type: ignore[misc]
            log.info("measurements_sent", device=order.device, measured=answer["measured"], planned=answer["planned"])

    def _give_up(self, order: Order, why: str) -> None:
        log.warning("order_given_up", device=order.device, why=why)
        try:
            self._persist(lambda: self._api.give_up(order, why[:_LONGEST_WHY]))
        except ApiError as error:
            if error.problem.code not in _GONE:
                raise

    def _keep_alive(self) -> None:
        """Renew the lease now and then, between calls that are timed; measuring goes on while the server is away."""
        if time.monotonic() - self._said_at < self._lease_s / _BEATS_IN_A_LEASE:
            return
        self._said_at = time.monotonic()
        try:
            self._api.heartbeat()
        except ClientError as error:
            if not _may_pass(error):
                raise
            log.warning("heartbeat_failed", why=str(error))

    def _persist(self, request: Callable[[], T]) -> T:
        """The answer to a request, however long the server stays away.

        Raises:
            ApiError: the server refuses for good.
        """
        pause_s = 1.0
        while True:
            try:
                answer = request()
            except ClientError as error:
                if not _may_pass(error):
                    raise
                log.warning("request_repeated", why=str(error), pause_s=pause_s)
            else:
                self._said_at = time.monotonic()
                return answer
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _disconnect(self) -> None:
        try:
            self._api.disconnect()
        except ClientError as error:
            log.warning("not_disconnected", why=str(error))  # the lease runs out by itself


def describe_machine() -> Json:
    """What the server shows of this machine."""
    versions = {"vitailor": version("vitailor")}
    for runtime in Runtime:
        found = runtime_version(runtime)
        if found is not None:
            versions[runtime.value] = _label(found)
    return {
        "host": _label(socket.gethostname()),
        "system": _label(f"{platform.system()} {platform.release()} {platform.machine()}"),
        "cores": os.cpu_count() or 1,
        "versions": versions,
    }


def _label(text: str) -> str:
    """A text as the server takes it: printable, and of a readable length."""
    return "".join(char for char in text if char.isprintable())[:MAX_LABEL] or "unknown"


def _may_pass(error: ClientError) -> bool:
    """Whether the same request may succeed later: the server is away, is at fault, or another process still speaks."""
    return is_temporary(error) or (isinstance(error, ApiError) and error.problem.status >= 500)
