"""The command that runs the whole service on this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from service.cli.connection import read_settings
from service.cli.failures import UsageProblem
from service.embedded import Embedded, EmbeddedError
from service.logs import configure_logging

UpDataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder for the database, files and logs; default: .vitailor.")
]


def up(
    data: UpDataOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: this machine only.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0 picks any free port.")] = None,
) -> None:
    """Run PostgreSQL, Valkey, the API, the relay and a worker here until Ctrl-C."""
    settings = read_settings(data_dir=data, host=host, port=port)
    stop_on_signals()
    configure_logging()
    try:
        print(f"starting in {settings.data_dir.absolute()} ...", flush=True)
        with Embedded(settings) as stack:
            print(f"url: {stack.url}\napi key: {stack.api_key}", flush=True)
            print(
                "next: `vitailor search --dataset digits --method masktas --wait`; Ctrl-C stops everything", flush=True
            )
            signal.pause()
    except EmbeddedError as error:
        raise UsageProblem(str(error)) from error
    except KeyboardInterrupt:
        print("stopped")


def stop_on_signals() -> None:
    """Let a service manager's SIGTERM end this process in the same orderly way as Ctrl-C.

    SIGINT is set too: a shell without job control starts background processes with it ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
