"""Commands about jobs that exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.failures import Exit, UsageProblem, problem_lines
from service.cli.watch import follow
from service.client import Candidate, Client, Job, Width
from service.client.client import JobAction

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job, such as job_0193...")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print what the API answers, as JSON.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Stay until the job has ended and show how it goes.")]


def list_jobs(
    status: Annotated[str | None, typer.Option(help="Only jobs with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """List jobs, the newest first."""
    with connect(url, data) as client:
        jobs = client.jobs(status=status, limit=limit)
    if as_json:
        output.print_json(jobs)
    elif jobs:
        output.make_console().print(output.jobs_table(jobs))
    else:
        print("no jobs; start one with `vitailor search`")


def show_job(
    job_id: JobArgument,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Show a job: where it is, what it found, what went wrong."""
    with connect(url, data) as client:
        if wait:
            wait_for(client, job_id)
            return
        job = client.job(job_id)
        if as_json:
            output.print_json(job)
        else:
            print_job(client, job)


def show_events(
    job_id: JobArgument,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher number.")] = 0,
    keep_following: Annotated[bool, typer.Option("--follow", help="Go on until the job has ended.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Print a job's history, one event a line."""
    with connect(url, data) as client:
        events = client.follow(job_id, after=after) if keep_following else client.events(job_id, after=after)
        for event in events:
            print(event.model_dump_json() if as_json else output.event_line(event), flush=True)


def cancel(job_id: JobArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """End a job; what it has found so far stays."""
    _act(job_id, "cancel", url, data)


def pause(job_id: JobArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Stop a job at its next checkpoint, to be resumed later."""
    _act(job_id, "pause", url, data)


def resume(job_id: JobArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Go on with a paused job where it stopped."""
    _act(job_id, "resume", url, data)


def retry(job_id: JobArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Go on with a failed or cancelled job from its last checkpoint."""
    _act(job_id, "retry", url, data)


def replay(job_id: JobArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Do the same once more, as a new job with the same spec and seed."""
    with connect(url, data) as client:
        job = client.replay(job_id)
    print(f"{job.id}  {job.status}  does what {job_id} does")


def extend(
    job_id: JobArgument,
    generations: Annotated[int | None, typer.Option(min=1, help="Generations in all.")] = None,
    max_evaluations: Annotated[int | None, typer.Option(min=1, help="Candidates to be scored in all.")] = None,
    max_wall_seconds: Annotated[int | None, typer.Option(min=1, help="Running time in all.")] = None,
    max_device_hours: Annotated[float | None, typer.Option(min=0, help="Time of devices in all.")] = None,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Let a search go on longer than was asked for at first: a paused one itself, one that is done as a new job."""
    totals: dict[str, float | None] = {
        "generations": generations,
        "max_evaluations": max_evaluations,
        "max_wall_seconds": max_wall_seconds,
        "max_device_hours": max_device_hours,
    }
    with connect(url, data) as client:
        job = client.extend(job_id, **{name: total for name, total in totals.items() if total is not None})
    print(f"{job.id}  {job.status}" if job.id == job_id else f"{job.id}  {job.status}  goes on where {job_id} ended")


def download(
    job_id: JobArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write to; default: named as the job.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All files of the job, not only those of the winner.")
    ] = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Download the winner, or what was extracted: architecture.json, weights.safetensors and model.py.

    Each file is checked against its digest.
    """
    folder = out or Path(job_id)
    with connect(url, data) as client:
        job = client.job(job_id)
        whole = everything or job.kind == "extract"
        for path in fetch_all(client, job, folder) if whole else fetch_winner(client, job, folder):
            print(path)


def wait_for(client: Client, job_id: str) -> None:
    """Show a job until it has ended and exit accordingly. Ctrl-C leaves the job running and says how to come back.

    Raises:
        typer.Exit: unless the job succeeded.
    """
    console = output.make_console()
    try:
        job = follow(client, job_id, console)
    except KeyboardInterrupt:
        print(
            f"\nThe job goes on. Come back with `vitailor job {job_id} --wait`, end it with `vitailor cancel {job_id}`."
        )
        raise typer.Exit(Exit.INTERRUPTED) from None
    print_job(client, job)
    if job.status != "succeeded":
        raise typer.Exit(Exit.JOB_NOT_SUCCEEDED)


def print_job(client: Client, job: Job) -> None:
    """Write a job's state, and its result or error."""
    print(f"{job.id}  {job.status}  {output.stage_text(job)}")
    if job.name:
        print(f"  {job.name}")
    if job.queue is not None:
        print(f"  number {job.queue.position} in the queue: {job.queue.reason}")
    for warning in job.warnings:
        print(f"  warning: {warning.detail}")
    if job.error is not None:
        print("\n".join(problem_lines(job.error)))
    if job.status == "succeeded":
        _print_end(client, job)


def _print_end(client: Client, job: Job) -> None:
    result = job.result or {}
    match job.kind:
        case "search":
            print_result(client, job)
            print(f"next: `vitailor download {job.id}` fetches the winner")
        case "teacher_import":
            print(f"teacher: {result['teacher']}")
        case "latency_table":
            networks = result["networks"]["held_out"]
            error = output.percent(result["error_share"])
            print(f"predictions are off by {error} on average over {networks} held-out networks")
            print(f"device: {result['device'] or 'deleted meanwhile'}")
        case "supernet_import":
            print(f"supernet: {result['supernet']}")
        case "extract":
            costs = result["costs"]
            print(
                f"width: {result['width']}, {costs['params_m']:.4f} M parameters, {costs['gmacs']:.5f} GMACs, "
                f"accuracy {output.percent(result['accuracy'])} on validation"
            )
            print(f"next: `vitailor download {job.id}` fetches its files")
        case "transfer":
            output.make_console().print(output.transfer_table(result))


def print_result(client: Client, job: Job) -> None:
    """Write what a search has found and what is to be thought of it."""
    result = job.result or {}
    output.make_console().print(output.candidates_table(client.pareto(job.id), title="Pareto front"))
    if result.get("widths"):
        widths = [Width.model_validate(width) for width in result["widths"]]
        output.make_console().print(output.widths_table(widths, title="Widths"))
    winner = find_winner(client, job)
    accuracy = winner.accuracy or {}
    print(
        f"winner: {winner.id}, {winner.costs['params_m']:.4f} M parameters, {winner.costs['gmacs']:.5f} GMACs, "
        f"accuracy {output.percent(accuracy.get('val'))} on validation, "
        f"{output.percent(accuracy.get('holdout'))} on the untouched holdout"
    )
    if result.get("baseline"):
        print(f"  {result['baseline']['sentence']}")
    for part in ("rank_correlation", "rank_correlation_retrained"):
        if result.get(part):
            print(f"  {result[part]['sentence']}")
            output.make_console().print(output.ranking_table(result[part]))
    if result.get("honesty"):
        output.make_console().print(output.honesty_table(result["honesty"]))


def find_winner(client: Client, job: Job) -> Candidate:
    """The network that won.

    Raises:
        UsageProblem: when the job has none.
    """
    winner = client.winner(job.id)
    if winner is None:
        how = f"`vitailor job {job.id}` tells more" if job.done else f"`vitailor job {job.id} --wait` waits for its end"
        raise UsageProblem(f"job {job.id} is {job.status} and has no network to download", next_step=how)
    return winner


def fetch_winner(client: Client, job: Job, folder: Path) -> list[Path]:
    """Download the files of the network that won into a folder.

    Raises:
        UsageProblem: when the job has none, or when the folder cannot be written.
    """
    winner = find_winner(client, job)
    with _writing(folder):
        return client.download_all((a for a in client.artifacts(job.id) if a.architecture == winner.id), folder)


def fetch_all(client: Client, job: Job, folder: Path) -> list[Path]:
    """Download every file of a job: those of a network into a folder named as its architecture.

    Raises:
        UsageProblem: when the folder cannot be written.
    """
    with _writing(folder):
        return [
            client.download(artifact, folder / (artifact.architecture or "") / Path(artifact.name).name)
            for artifact in client.artifacts(job.id)
        ]


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageProblem(
            f"{error.filename or folder} cannot be written: {error.strerror}",
            next_step="name another folder with --out, or make room and run the command again: it goes on where it was",
        ) from error


def _act(job_id: str, action: JobAction, url: str | None, data: Path | None) -> None:
    with connect(url, data) as client:
        job = client.act(job_id, action)
    print(f"{job.id}  {job.status}")
