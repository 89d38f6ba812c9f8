"""Device agents: who may speak for one, what an order needs, and answers that nobody should believe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from search.latency import MAX_NS
from service.db.models import Agent, ApiKey, Device, DeviceNetwork, Job
from service.ids import IdKind, parse_id
from service.keys.service import new_key
from tests.integration.api.agents import MACHINE, Board, add_agent, measurement, ordered

NewClient = Callable[[str], TestClient]


@pytest.fixture
def board(api: TestClient, client_with: NewClient) -> Board:
    """An agent whose machine is connected."""
    return add_agent(api, client_with).connect()


def lapse(session: Session, owner: str, name: str = "board") -> None:
    """Let the lease of an agent run out."""
    ago = datetime.now(UTC) - timedelta(seconds=1)
    session.execute(update(Agent).where(Agent.owner == owner, Agent.name == name).values(lease_until=ago))
    session.commit()


def shown(api: TestClient, device: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = api.get(f"/devices/{device['id']}").json()
    return view


def refused(response: httpx.Response, status: int, code: str) -> bool:
    return (response.status_code, response.json()["code"]) == (status, code)


def test_an_order_that_is_measured_becomes_a_job_that_fits_the_table(
    api: TestClient, board: Board, session: Session
) -> None:
    device = ordered(api)
    assert (device["status"], device["agent"], device["job"]) == ("waiting", "board", None)
    planned = device["order"]["planned"]
    assert device["order"] == {"measured": 0, "planned": planned, "lease_until": None}
    order = board.next()
    assert (order["device"], len(order["architectures"])) == (device["id"], planned)
    assert order["measuring"]["runs"] == 3
    assert board.begin(order).json() == {"known": []}
    assert board.send(order, range(4)).json() == {"measured": 4, "planned": planned, "done": False}
    view = shown(api, device)
    assert (view["status"], view["order"]["measured"]) == ("measuring", 4)
    assert view["order"]["lease_until"] is not None
    assert board.send(order, range(4, planned)).json()["done"] is True
    assert board.next() is None
    view = shown(api, device)
    assert view["status"] == "waiting"  # for a worker now
    job = api.get(f"/jobs/{view['job']}").json()
    assert (job["kind"], job["status"], job["spec"]["build"]) == ("latency_table", "queued", device["build"])
    machine = session.scalars(select(Device.machine).where(Device.id == parse_id(IdKind.DEVICE, device["id"]))).one()
    assert machine == {"device": "a board", "threads": 2, "version": "2.10.0", "cores": 4, "load": 0.1}


def test_an_agent_goes_on_where_the_one_before_was_killed(
    api: TestClient, board: Board, session: Session, owner: str
) -> None:
    order = ordered_and_begun(api, board)
    board.send(order, [0, 3])
    lapse(session, owner)
    board = board.again().connect()
    assert board.begin(board.next()).json() == {"known": [0, 3]}


def test_what_was_measured_on_another_machine_is_measured_again(
    api: TestClient, board: Board, session: Session, owner: str
) -> None:
    order = ordered_and_begun(api, board)
    board.send(order, [0, 3])
    lapse(session, owner)
    board = board.again().connect()
    assert board.begin(order, device="another board").json() == {"known": []}
    assert board.send(order, [0]).json()["measured"] == 1


def test_one_process_speaks_for_an_agent_and_the_late_one_is_told(
    api: TestClient, board: Board, session: Session, owner: str
) -> None:
    order = ordered_and_begun(api, board)
    other = board.again()
    taken = other.post("connect", MACHINE)
    assert refused(taken, 409, "agent_taken")
    assert taken.json()["retryable"] is True
    lapse(session, owner)
    other.connect()
    assert refused(board.send(order, [0]), 409, "agent_superseded")
    assert refused(board.post("next"), 409, "agent_superseded")
    assert refused(board.post("heartbeat"), 409, "agent_superseded")
    assert refused(board.post(f"orders/{order['device']}/failure", {"detail": "no"}), 409, "agent_superseded")
    # The new one has to say on what it measures before anything counts.
    assert refused(other.send(order, [0]), 409, "agent_superseded")
    assert shown(api, {"id": order["device"]})["order"]["measured"] == 0


def test_a_process_whose_answer_got_lost_connects_again_at_once(board: Board) -> None:
    assert board.post("connect", MACHINE).json() == {"lease_s": 60.0}
    assert board.post("heartbeat").status_code == 204


def test_a_lease_that_ran_out_is_renewed_when_nobody_has_taken_over(
    api: TestClient, board: Board, session: Session, owner: str
) -> None:
    order = ordered_and_begun(api, board)
    lapse(session, owner)
    assert shown(api, {"id": order["device"]})["status"] == "waiting"
    assert board.send(order, [0]).json()["measured"] == 1
    assert shown(api, {"id": order["device"]})["status"] == "measuring"


def test_a_process_that_ends_in_order_makes_room_at_once(api: TestClient, board: Board) -> None:
    assert board.post("disconnect").status_code == 204
    assert api.get("/agents/board").json()["alive"] is False
    assert refused(board.post("heartbeat"), 409, "agent_superseded")
    board.again().connect()
    assert api.get("/agents").json()["data"][0]["alive"] is True


def test_what_was_sent_stays_whatever_is_sent_again(api: TestClient, board: Board, session: Session) -> None:
    order = ordered_and_begun(api, board)
    board.send(order, [0])
    assert board.send(order, [0, 1], ns=5, low_ns=5, high_ns=5).json()["measured"] == 2
    query = select(DeviceNetwork.latency).where(DeviceNetwork.device_id == parse_id(IdKind.DEVICE, order["device"]))
    first, second = (latency["ns"] for latency in session.scalars(query.order_by(DeviceNetwork.n).limit(2)) if latency)
    assert (first != 5, second) == (True, 5)


def test_the_last_answer_may_be_sent_twice(api: TestClient, board: Board, session: Session, owner: str) -> None:
    order = ordered_and_begun(api, board)
    everything = range(len(order["architectures"]))
    answers = [board.send(order, everything).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(session.scalars(select(Job).where(Job.owner == owner)).all()) == 1


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"n": 9999}, "/measurements/0/n"),
        ({"n": -1}, "/measurements/0/n"),
        ({"n": 1}, "/measurements/0/genotype"),  # the numbers of another network
        ({"genotype": [1]}, "/measurements/0/genotype"),
        ({"genotype": [1] * 1000}, "/measurements/0/genotype"),
        ({"ns": 0}, "/measurements/0/ns"),
        ({"ns": MAX_NS + 1}, "/measurements/0/ns"),
        ({"ns": 1.5}, "/measurements/0/ns"),
        ({"anchor_ns": 0}, "/measurements/0/anchor_ns"),
        ({"low_ns": 10**11}, "/measurements/0"),
        ({"runs": 2}, "/measurements/0/runs"),
        ({"warmup_runs": 9}, "/measurements/0/runs"),
        ({"outliers": 4}, "/measurements/0"),
        ({"more": 1}, "/measurements/0/more"),
    ],
)
def test_a_measurement_that_cannot_be_one_is_refused(
    api: TestClient, board: Board, changes: dict[str, Any], pointer: str
) -> None:
    order = ordered_and_begun(api, board)
    response = board.send(order, [0], **changes)
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert shown(api, {"id": order["device"]})["order"]["measured"] == 0


def test_no_answer_is_larger_than_an_agent_needs(api: TestClient, board: Board) -> None:
    order = ordered_and_begun(api, board)
    one = measurement(0, order["architectures"][0])
    path = f"orders/{order['device']}/measurements"
    assert board.post(path, {"measurements": [one] * 65}).status_code == 422
    assert board.post(path, {"measurements": []}).status_code == 422
    nan = board.client.post(
        f"/agents/board/{path}", content=b'{"session": "%s", "measurements": [NaN]}' % board.session.encode(),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert refused(nan, 400, "malformed")


def test_the_machine_says_why_it_cannot_and_the_device_shows_it_without_control_characters(
    api: TestClient, board: Board
) -> None:
    order = ordered_and_begun(api, board)
    detail = "no onnxruntime \x1b[31mhere" + "x" * 1500
    assert board.post(f"orders/{order['device']}/failure", {"detail": detail}).status_code == 204
    view = shown(api, {"id": order["device"]})
    assert (view["status"], view["error"]["code"]) == ("failed", "latency_unmeasurable")
    assert "no onnxruntime  [31mhere" in view["error"]["detail"]
    assert len(view["error"]["detail"]) < 1100
    assert refused(board.send(order, [0]), 409, "invalid_state")
    assert board.next() is None


def test_an_order_whose_device_was_deleted_is_gone(api: TestClient, board: Board) -> None:
    order = ordered_and_begun(api, board)
    assert api.delete(f"/devices/{order['device']}").status_code == 204
    assert refused(board.send(order, [0]), 404, "not_found")
    assert board.next() is None


def test_an_order_wakes_an_agent_that_waits_for_one(api: TestClient, board: Board) -> None:
    threading.Timer(0.1, lambda: ordered(api)).start()
    response = board.post("next", Prefer="wait=20")
    assert response.json()["order"] is not None


def test_orders_are_measured_one_after_the_other(api: TestClient, board: Board) -> None:
    first, second = ordered(api), ordered(api)
    order = board.next()
    assert order["device"] == first["id"]
    board.begin(order)
    board.send(order, range(len(order["architectures"])))
    assert board.next()["device"] == second["id"]


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/devices"),
        ("GET", "/agents"),
        ("GET", "/jobs"),
        ("GET", "/agents/board"),
        ("POST", "/devices"),
        ("PUT", "/agents/board"),
        ("DELETE", "/agents/board"),
        ("POST", "/search"),
        ("GET", "/artifacts/art_" + "0" * 32),
    ],
)
def test_a_key_of_an_agent_can_do_nothing_but_measure(board: Board, method: str, path: str) -> None:
    response = board.client.request(method, path, json={} if method in ("POST", "PUT") else None)
    assert refused(response, 403, "forbidden")


def test_a_key_of_an_agent_speaks_for_no_other(api: TestClient, client_with: NewClient, board: Board) -> None:
    other = add_agent(api, client_with, "other")
    device = ordered(api, "other")
    thief = Board(board.client, "other", session=uuid4().hex)
    assert refused(thief.post("connect", MACHINE), 404, "not_found")
    other.connect()
    thief.session = other.session
    for path, body in (("next", {}), ("heartbeat", {}), ("disconnect", {}), (f"orders/{device['id']}/begin", None)):
        response = thief.begin({"device": device["id"]}) if body is None else thief.post(path, body)
        assert refused(response, 404, "not_found"), path
    # Orders of others are no orders of one's own.
    assert refused(board.begin({"device": device["id"]}), 404, "not_found")


def test_agents_are_their_owners(
    api: TestClient, stranger: TestClient, client_with: NewClient, board: Board, session: Session
) -> None:
    assert stranger.get("/agents").json()["data"] == []
    assert stranger.get("/agents/board").status_code == 404
    assert stranger.delete("/agents/board").status_code == 404
    theirs = add_agent(stranger, client_with)
    theirs.connect()
    assert api.get("/agents/board").json()["alive"] is True
    ordered(api)
    assert theirs.next() is None


def test_another_key_ends_the_session_and_the_key_before(api: TestClient, client_with: NewClient, board: Board) -> None:
    key = new_key()
    assert api.put("/agents/board", json={"key": key}).status_code == 200
    assert api.put("/agents/board", json={"key": key}).status_code == 200
    assert board.client.post("/agents/board/heartbeat", json={"session": board.session}).status_code == 401
    Board(client_with(key), "board").connect()


@pytest.mark.parametrize("of", ["nobody", "an admin", "another agent", "the agent before"])
def test_a_key_that_is_none_or_not_new_is_refused_without_being_repeated(
    api: TestClient, client_with: NewClient, session: Session, owner: str, of: str
) -> None:
    board = add_agent(api, client_with, "one")
    text = board.client.headers["Authorization"].removeprefix("Bearer ")
    if of == "the agent before":
        assert api.put("/agents/one", json={"key": new_key()}).status_code == 200
    elif of == "an admin":
        text = api.headers["Authorization"].removeprefix("Bearer ")
    elif of == "nobody":
        text = "my secret"
    response = api.put("/agents/one" if of == "the agent before" else "/agents/two", json={"key": text})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/key")
    assert text not in response.text


def test_an_agent_is_deleted_with_its_key_once_nothing_waits_for_it(
    api: TestClient, board: Board, session: Session, owner: str
) -> None:
    device = ordered(api)
    waits = api.delete("/agents/board")
    assert refused(waits, 409, "invalid_state")
    assert waits.json()["devices"] == [device["id"]]
    assert api.delete(f"/devices/{device['id']}").status_code == 204
    assert api.delete("/agents/board").status_code == 204
    assert board.post("heartbeat").status_code == 401
    revoked = select(ApiKey.revoked_at).where(ApiKey.owner == owner, ApiKey.name == "agent board")
    assert session.scalars(revoked).one() is not None


def test_a_device_on_an_agent_that_is_not_there_names_those_that_are(api: TestClient, board: Board) -> None:
    body = {"name": "x", "build": {"space": "micro", "on": "agent:bord"}}
    response = api.post("/devices", json=body)
    assert refused(response, 422, "validation_failed")
    [item] = response.json()["errors"]
    assert (item["pointer"], item["code"], item["allowed"]) == (
        "/build/on",
        "unknown_agent",
        ["worker", "agent:board"],
    )
    assert api.get("/devices").json()["data"] == []


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 64, "\x1b[1m"])
def test_a_name_that_would_not_fit_into_a_command_is_refused(api: TestClient, name: str) -> None:
    assert api.put(f"/agents/{quote(name)}", json={"key": new_key()}).status_code == 422


def ordered_and_begun(api: TestClient, board: Board) -> dict[str, Any]:
    ordered(api)
    order = board.next()
    assert board.begin(order).status_code == 200
    return order
