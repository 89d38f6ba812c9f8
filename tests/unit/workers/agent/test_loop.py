"""A device agent before a server that answers as written down; what networks take is made up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from models.architecture import Architecture
from search.presets import resolve
from service.client.errors import ApiError
from service.client.transport import Transport
from tests.unit.service.scripted import Answer, Scripted, as_json, problem, scripted_server
from workers.agent.api import AgentApi
from workers.agent.loop import Agent, Means
from workers.latency.execution import Execution

SPACE = resolve("micro", img_size=8, in_chans=1)
NETWORKS = [SPACE.smallest(10), SPACE.largest(10), SPACE.decode((3, 2.0, 2.0, 2.0, 2, 3, 3, 48), 10)]
ORDERS = "/agents/board/orders/dev_1"
NOTHING = as_json({"order": None})


def order(**changes: Any) -> Answer:
    measuring = {"runtime": "torch", "precision": "fp32", "batch_size": 1, "threads": 1, "percentile": 50}
    measuring |= {"warmup_runs": 1, "runs": 3, "seed": 0, **changes}
    document = {"device": "dev_1", "name": "a board", "measuring": measuring}
    return as_json({"order": {**document, "architectures": [arch.to_json() for arch in NETWORKS]}})


def answers(lease_s: float = 60.0, **changes: list[Answer]) -> dict[str, list[Answer]]:
    """A server with one order of which network 1 is measured already."""
    of_server = {
        "POST /agents/board/connect": [as_json({"lease_s": lease_s})],
        "POST /agents/board/heartbeat": [Answer(204, b"")],
        "POST /agents/board/disconnect": [Answer(204, b"")],
        "POST /agents/board/next": [order(), NOTHING],
        f"POST {ORDERS}/begin": [as_json({"known": [1]})],
        f"POST {ORDERS}/measurements": [as_json({"measured": 3, "planned": 3, "done": True})],
        f"POST {ORDERS}/failure": [Answer(204, b"")],
    }
    for name, given in changes.items():
        [route] = [route for route in of_server if route.endswith(f"/{name}")]
        of_server[route] = given
    return of_server


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes a nanosecond for each channel of its network: the true times depend on the host."""
    monkeypatch.setattr(Execution, "pass_of", lambda self, network, images, scratch: lambda: int(network.embed_dim))
    monkeypatch.setattr("workers.latency.measure._timed", lambda run, clock: run())


@contextmanager
def agent_of(given: dict[str, list[Answer]], folder: Path) -> Iterator[tuple[Agent, Scripted, list[float]]]:
    pauses: list[float] = []
    with scripted_server(given) as server:
        transport = Transport(server.url, "vt_x", retries=0)
        means = Means(torch.device("cpu"), threads=1, scratch=folder)
        yield Agent(AgentApi(transport, "board"), means, sleep=pauses.append), server, pauses
        transport.close()


def sent(server: Scripted, what: str) -> list[Any]:
    return [request.body for request in server.requests if request.path.endswith(f"/{what}")]


def test_what_is_not_known_is_measured_and_sent_with_its_network(tmp_path: Path) -> None:
    with agent_of(answers(), tmp_path) as (agent, server, _):
        agent.run_once()
    [begun], [measured] = sent(server, "begin"), sent(server, "measurements")
    assert begun["machine"]["threads"] == 1
    found = {one["n"]: one for one in measured["measurements"]}
    assert {n: Architecture.from_json(NETWORKS[n].to_json()).genotype for n in found} == {
        n: tuple(one["genotype"]) for n, one in found.items()
    }
    assert {n: one["ns"] for n, one in found.items()} == {n: NETWORKS[n].embed_dim for n in (0, 2)}
    assert {one["anchor_ns"] for one in found.values()} == {NETWORKS[0].embed_dim}


def test_what_was_measured_is_sent_again_until_the_server_answers(tmp_path: Path) -> None:
    done = as_json({"measured": 3, "planned": 3, "done": True})
    away = [problem(503, "unavailable", retryable=True), problem(500, "internal"), Answer(break_off=1), done]
    with agent_of(answers(measurements=away), tmp_path) as (agent, server, pauses):
        agent.run_once()
    bodies = sent(server, "measurements")
    assert len(bodies) == 4
    assert all(body == bodies[0] for body in bodies)
    assert pauses == [1.0, 2.0, 4.0]


def test_a_name_that_is_taken_is_asked_for_until_it_is_free(tmp_path: Path) -> None:
    taken = problem(409, "agent_taken", retryable=True)
    free = as_json({"lease_s": 60.0})
    with agent_of(answers(connect=[taken, taken, free]), tmp_path) as (agent, server, pauses):
        agent.run_once()
    assert len(pauses) == 2
    assert len({request.body["session"] for request in server.requests}) == 1


@pytest.mark.parametrize("code", ["agent_superseded", "unauthorized"])
def test_a_session_that_is_over_ends_the_agent(tmp_path: Path, code: str) -> None:
    with (
        agent_of(answers(measurements=[problem(409, code)]), tmp_path) as (agent, server, _),
        pytest.raises(ApiError, match=code),
    ):
        agent.run()
    assert len(sent(server, "measurements")) == 1


@pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (409, "invalid_state")])
def test_an_order_that_is_gone_makes_room_for_the_next(tmp_path: Path, status: int, code: str) -> None:
    with agent_of(answers(measurements=[problem(status, code)]), tmp_path) as (agent, server, _):
        agent.run_once()
        agent.run_once()
    assert len(sent(server, "next")) == 2
    assert sent(server, "failure") == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"precision": "fp16"}, "computes in fp32, bf16, not in fp16"),
        ({"runtime": "abacus"}, "abacus"),
        ({"batch_size": -1}, "RuntimeError"),
    ],
)
def test_what_the_machine_cannot_do_is_told_and_the_next_order_goes_on(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with agent_of(answers(next=[order(**changes), order(), NOTHING]), tmp_path) as (agent, server, _):
        agent.run_once()
        agent.run_once()
    [failure] = sent(server, "failure")
    assert why in failure["detail"]
    assert len(sent(server, "measurements")) == 1


def test_measurements_that_the_server_refuses_end_the_order_and_not_the_agent(tmp_path: Path) -> None:
    refusal = problem(422, "validation_failed", "network 0 of the order is another one")
    with agent_of(answers(measurements=[refusal]), tmp_path) as (agent, server, _):
        agent.run_once()
    assert "another one" in sent(server, "failure")[0]["detail"]


def test_the_lease_is_renewed_while_networks_are_measured_even_when_the_server_is_away(tmp_path: Path) -> None:
    away = [problem(503, "unavailable", retryable=True), Answer(204, b"")]
    with agent_of(answers(lease_s=1e-9, heartbeat=away), tmp_path) as (agent, server, pauses):
        agent.run_once()
    assert len(sent(server, "heartbeat")) > 3
    assert len(sent(server, "measurements")) == 1
    assert pauses == []


def test_an_agent_that_is_stopped_lets_the_next_one_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: AgentApi, wait_s: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AgentApi, "next_order", interrupt)
    with agent_of(answers(), tmp_path) as (agent, server, _), pytest.raises(KeyboardInterrupt):
        agent.run()
    assert server.paths()[-1] == "POST /agents/board/disconnect"
