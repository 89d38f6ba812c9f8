"""The command that lets this machine measure for a server elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from service.cli.connection import KEY_VARIABLE, URL_VARIABLE, DataOption, known_key, known_url

_MODULE = "workers.agent.main"


def device_agent(
    name: Annotated[str, typer.Option("--name", help="The agent's name, as `vitailor agents add` made it.")],
    url: Annotated[
        str | None,
        typer.Option("--server", "--url", envvar=URL_VARIABLE, help="The server; default: the one of the data folder."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help=f"The agent's key. Others on this machine can read it here; prefer {KEY_VARIABLE}."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="What torch computes on: auto, cpu, cuda, cuda:1.")] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of one operation; default: all processors.")
    ] = None,
    data: DataOption = None,
) -> None:
    """Measure networks on this machine for a server elsewhere until Ctrl-C."""
    server, secret = known_url(url, data), key or known_key(data)
    arguments = ["--url", server, "--name", name, "--device", device]
    arguments += ["--threads", str(threads)] if threads is not None else []
    environment = {**os.environ, **({KEY_VARIABLE: secret} if secret else {})}
    # In place of this process: it is the agent that signals reach, and the command line loads no torch itself.
    os.execve(sys.executable, [sys.executable, "-m", _MODULE, *arguments], environment)
