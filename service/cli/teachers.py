"""Commands about teachers."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.failures import UsageProblem
from service.cli.jobs import JsonOption, WaitOption, wait_for

app = typer.Typer(help="Frozen networks that searches learn from.", no_args_is_help=True)


@app.command("list")
def list_teachers(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List registered and pretrained teachers, the newest first."""
    with connect(url, data) as client:
        teachers = client.teachers()
    if as_json:
        output.print_json(teachers)
    elif teachers:
        output.make_console().print(output.teachers_table(teachers))
    else:
        print("no teachers; add one with `vitailor teachers add --timm vit_base_patch16_224.mae`")


@app.command("show")
def show_teacher(
    teacher_id: Annotated[str, typer.Argument(metavar="ID", help="The teacher, such as tch_0193...")],
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Show a teacher: its architecture, licence, and what it was made of."""
    with connect(url, data) as client:
        output.print_json(client.teacher(teacher_id))


@app.command("add")
def add_teacher(
    path: Annotated[str | None, typer.Argument(help="File of weights, relative to the server's import root.")] = None,
    timm: Annotated[str | None, typer.Option("--timm", help="Name of a timm network instead of a file.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call the teacher.")] = None,
    num_heads: Annotated[
        int | None, typer.Option("--num-heads", help="Attention heads, for sizes that were never published.")
    ] = None,
    norm_eps: Annotated[float | None, typer.Option("--norm-eps", help="Epsilon of the norms, if not 1e-6.")] = None,
    licence: Annotated[str | None, typer.Option("--licence", help="What you know of the terms of use.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Register weights that exist already, by a timm name or from a file on the server."""
    if (path is None) == (timm is None):
        allowed = "a path below the server's import root, or --timm with a name"
        raise UsageProblem("a teacher comes from one file or one timm network", where="PATH", allowed=allowed)
    asked = {"timm": timm, "path": path, "num_heads": num_heads, "norm_eps": norm_eps, "licence": licence}
    source = {field: value for field, value in asked.items() if value is not None}
    with connect(url, data) as client:
        job = client.add_teacher(source, name=name)
        if as_json:
            output.print_json(job)
        else:
            print(job.id)
        if wait:
            wait_for(client, job.id)
