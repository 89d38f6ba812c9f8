"""The process of a device agent: ``python -m workers.agent.main``, which ``vitailor device-agent`` starts.

It opens neither database nor store: all that it knows of the service is its URL. The key comes in the environment,
since everybody on the machine can read command lines.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import structlog

from service.client.errors import ApiError, Unreachable
from service.client.transport import Transport
from service.logs import configure_logging
from workers.agent.api import AgentApi
from workers.agent.loop import Agent, Means
from workers.training.compute import choose_compute

log = structlog.get_logger(__name__)

KEY_VARIABLE = "VITAILOR_API_KEY"

_TIMEOUT_S = 60.0
"""Longer than the server lets anybody wait for an order."""

_REFUSED = 2


def main() -> None:
    """Run an agent until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m workers.agent.main", description=main.__doc__)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--name", required=True, help="of the agent")
    parser.add_argument("--device", default="auto", help="of torch")
    parser.add_argument("--threads", type=int, default=None, help="of one operation")
    given = parser.parse_args()
    configure_logging()
    # SIGINT as well: a shell without job control starts background processes with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    raise SystemExit(run(given.url, given.name, given.device, given.threads or _cores(), os.environ.get(KEY_VARIABLE)))


def run(url: str, name: str, device: str, threads: int, key: str | None) -> int:
    """Run an agent; returns the exit code: 0 when it was told to stop, 2 when the server refuses it."""
    with tempfile.TemporaryDirectory(prefix="vitailor-agent-") as scratch:
        means = Means(choose_compute(device, "fp32").device, threads, Path(scratch))
        try:
            # It repeats what failed by itself, for as long as it takes.
            transport = Transport(url, key, timeout_s=_TIMEOUT_S, retries=0)
            Agent(AgentApi(transport, name), means).run()
        except KeyboardInterrupt:
            log.info("agent_stopped")
            return 0
        except (ApiError, Unreachable) as error:
            print(f"error: {error}", file=sys.stderr)
            return _REFUSED


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    main()
