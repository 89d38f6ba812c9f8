"""The command ``vitailor``. It talks to a server through the public API and can do nothing that a script cannot."""

from __future__ import annotations

import sys

import typer

from service.cli import (
    agents,
    catalog,
    demo,
    device_agent,
    devices,
    jobs,
    reference,
    search,
    stack,
    supernets,
    teachers,
)
from service.cli.failures import UsageProblem, report
from service.client.errors import ClientError

app = typer.Typer(
    name="vitailor",
    help="Neural architecture search for Vision Transformers, on your own machines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_SERVER = "Server"
_SEARCHES = "Searches"
_JOBS = "Jobs"
_PARTS = "What searches are made of"

app.command("up", rich_help_panel=_SERVER)(stack.up)
app.command("demo", rich_help_panel=_SERVER)(demo.demo)
app.command("device-agent", rich_help_panel=_SERVER)(device_agent.device_agent)
app.command("settings", rich_help_panel=_SERVER)(reference.show_settings)
app.command("new-key", rich_help_panel=_SERVER)(reference.show_new_key)
app.command("search", rich_help_panel=_SEARCHES)(search.search)
app.command("validate", rich_help_panel=_SEARCHES)(search.validate)
app.command("jobs", rich_help_panel=_JOBS)(jobs.list_jobs)
app.command("job", rich_help_panel=_JOBS)(jobs.show_job)
app.command("events", rich_help_panel=_JOBS)(jobs.show_events)
app.command("cancel", rich_help_panel=_JOBS)(jobs.cancel)
app.command("pause", rich_help_panel=_JOBS)(jobs.pause)
app.command("resume", rich_help_panel=_JOBS)(jobs.resume)
app.command("retry", rich_help_panel=_JOBS)(jobs.retry)
app.command("replay", rich_help_panel=_JOBS)(jobs.replay)
app.command("extend", rich_help_panel=_JOBS)(jobs.extend)
app.command("download", rich_help_panel=_JOBS)(jobs.download)
app.command("datasets", rich_help_panel=_PARTS)(catalog.list_datasets)
app.command("import", rich_help_panel=_PARTS)(catalog.import_dataset)
app.add_typer(teachers.app, name="teachers", rich_help_panel=_PARTS)
app.add_typer(supernets.app, name="supernets", rich_help_panel=_PARTS)
app.add_typer(devices.app, name="devices", rich_help_panel=_PARTS)
app.add_typer(agents.app, name="agents", rich_help_panel=_PARTS)
app.command("spaces", rich_help_panel=_PARTS)(catalog.list_spaces)


def main() -> None:
    """Run the command line; the exit codes are those of :class:`service.cli.failures.Exit`."""
    try:
        app()
    except (ClientError, UsageProblem) as error:
        sys.exit(report(error))
