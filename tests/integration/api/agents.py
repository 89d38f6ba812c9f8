"""Device agents as tests play them: what a machine elsewhere says to the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from fastapi.testclient import TestClient

from models.architecture import Architecture
from search.cost import macs
from service.keys.service import new_key

SPACE = {
    "preset": "micro",
    "img_size": 8,
    "in_chans": 1,
    "overrides": {"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
}
MACHINE = {
    "host": "board",
    "system": "Linux 6.1 aarch64",
    "cores": 4,
    "versions": {"vitailor": "0.1.0", "torch": "2.10.0"},
}
ON = {"device": "a board", "threads": 2, "version": "2.10.0"}


def measurement(at: int, architecture: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A network that takes a nanosecond for each MAC."""
    arch = Architecture.from_json(architecture)
    taken = macs(arch)
    values = {"n": at, "genotype": list(arch.genotype), "ns": taken, "low_ns": taken, "high_ns": taken, "runs": 3}
    return {**values, "warmup_runs": 1, "steady": True, "outliers": 0, "anchor_ns": 1000, **changes}


@dataclass
class Board:
    """A machine that speaks for one agent."""

    client: TestClient
    name: str
    session: str = field(default_factory=lambda: uuid4().hex)

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        said = {"session": self.session, **(body or {})}
        response: httpx.Response = self.client.post(f"/agents/{self.name}/{path}", json=said, headers=headers)
        return response

    def connect(self) -> Board:
        response = self.post("connect", MACHINE)
        assert response.status_code == 200, response.text
        return self

    def again(self) -> Board:
        """Another process on the same machine."""
        return Board(self.client, self.name)

    def next(self) -> dict[str, Any]:
        response = self.post("next")
        assert response.status_code == 200, response.text
        order: dict[str, Any] = response.json()["order"]
        return order

    def begin(self, order: dict[str, Any], **changes: Any) -> httpx.Response:
        body = {"machine": {**ON, **changes}, "cores": 4, "load": 0.1}
        return self.post(f"orders/{order['device']}/begin", body)

    def send(self, order: dict[str, Any], places: Sequence[int], **changes: Any) -> httpx.Response:
        taken = [measurement(n, order["architectures"][n], **changes) for n in places]
        return self.post(f"orders/{order['device']}/measurements", {"measurements": taken})


def add_agent(api: TestClient, client_with: Callable[[str], TestClient], name: str = "board") -> Board:
    """Make an agent; its board is not connected yet."""
    key = new_key()
    response = api.put(f"/agents/{name}", json={"key": key})
    assert response.status_code == 201, response.text
    return Board(client_with(key), name)


def ordered(api: TestClient, name: str = "board", **changes: Any) -> dict[str, Any]:
    """Have a device measured by an agent."""
    build = {"space": SPACE, "held_out": 6, "runs": 3, "warmup_runs": 1, "on": f"agent:{name}", **changes}
    response = api.post("/devices", json={"name": "elsewhere", "build": build})
    assert response.status_code == 201, response.text
    view: dict[str, Any] = response.json()
    return view
