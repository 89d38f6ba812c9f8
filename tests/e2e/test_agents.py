"""A device agent as a process of its own, killed in the middle, and a search that keeps to the table it measured."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.client import Client, Device
from service.embedded import Embedded
from service.keys.service import new_key
from tests.e2e.commands import COMMAND
from tests.stage_runs import TINY, merged
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = "board"


@contextmanager
def running(stack: Embedded, key: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"VITAILOR_API_KEY": key, "OMP_NUM_THREADS": "1"}
    command = [COMMAND, "device-agent", "--server", stack.url, "--name", NAME, "--threads", "1", "--device", "cpu"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def measured(client: Client, device: Device) -> int:
    order = client.device(device.id).order
    return order.measured if order is not None else -1


def test_an_agent_that_is_killed_goes_on_and_its_table_limits_a_search(
    stack: Embedded, client: Client, tmp_path: Path
) -> None:
    log = tmp_path / "agent.log"
    key = new_key()
    client.put_agent(NAME, key)
    space = {**TINY["space"], "img_size": 8, "in_chans": 1}
    build = {"space": space, "on": f"agent:{NAME}", "networks": 34, "held_out": 6, "runs": 20}
    device = client.add_device("board, rev. 3", build=build)
    with running(stack, key, log) as process:
        wait_until(lambda: measured(client, device) > 0, "something is measured", limit_s=120)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = measured(client, device)
    key = new_key()
    client.put_agent(NAME, key)  # ends the session of the killed one, whose lease would last for a minute
    with running(stack, key, log) as process:
        wait_until(lambda: client.device(device.id).status == "ready", "the table is there", limit_s=240)
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert not next(agent for agent in client.agents() if agent.name == NAME).alive
    assert f'"known": {before}' in log.read_text()
    found = client.device(device.id)
    assert found.setting is not None
    assert (found.setting["threads"], found.held_out, found.agent) == (1, 6, NAME)
    limit = {"metric": "latency_ms", "device": found.id, "max": 1000}
    job = client.search(merged(TINY, {"constraints": [limit]}))
    last = list(client.follow(job.id))[-1]
    assert last.data["status"] == "succeeded", client.job(job.id).error
    assert all("latency_ms" in candidate.costs for candidate in client.candidates(job.id))
