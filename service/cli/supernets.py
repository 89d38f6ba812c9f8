"""Commands about supernets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.failures import UsageProblem
from service.cli.jobs import JsonOption, WaitOption, wait_for
from service.client import Client, Job

app = typer.Typer(
    help="Weights that many networks share; a slimmable one gives any of its widths.", no_args_is_help=True
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The supernet, such as sn_0193...")]


@app.command("list")
def list_supernets(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List trained and imported supernets, the newest first."""
    with connect(url, data) as client:
        supernets = client.supernets()
    if as_json:
        output.print_json(supernets)
    elif supernets:
        output.make_console().print(output.supernets_table(supernets))
    else:
        print("no supernets; train one with `vitailor search --dataset digits --method scala`")


@app.command("show")
def show_supernet(
    supernet_id: IdArgument, as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None
) -> None:
    """Show a supernet: of a slimmable one every width with its costs and accuracy."""
    with connect(url, data) as client:
        supernet = client.supernet(supernet_id)
    if as_json or not supernet.widths:
        output.print_json(supernet)
    else:
        print(f"{supernet.id}  {supernet.method}  of job {supernet.job}")
        output.make_console().print(output.widths_table(supernet.widths))


@app.command("extract")
def extract(
    supernet_id: IdArgument,
    width: Annotated[int | None, typer.Option("--width", help="Channels of a token.")] = None,
    ratio: Annotated[float | None, typer.Option("--ratio", help="Share of the whole network's width.")] = None,
    max_params_m: Annotated[float | None, typer.Option("--max-params-m", help="Limit in million parameters.")] = None,
    max_gmacs: Annotated[float | None, typer.Option("--max-gmacs", help="Limit in 10^9 multiply-accumulates.")] = None,
    max_weight_mb: Annotated[float | None, typer.Option("--max-weight-mb", help="Limit in 10^6 bytes.")] = None,
    max_peak_mem_mb: Annotated[
        float | None, typer.Option("--max-peak-mem-mb", help="Limit on weights and live tensors, in 10^6 bytes.")
    ] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option("--max-latency-ms", help="Limit of one forward pass on the worker's processor.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Images of that forward pass.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Export one width as a plain network: the one that is named, or the best within the limits."""
    asked = _given(
        width=width,
        ratio=ratio,
        max_params_m=max_params_m,
        max_gmacs=max_gmacs,
        max_weight_mb=max_weight_mb,
        max_peak_mem_mb=max_peak_mem_mb,
        max_latency_ms=max_latency_ms,
        batch_size=batch_size,
    )
    if not asked:
        raise UsageProblem(
            "it is not said which width",
            allowed="--width, --ratio, or limits such as --max-params-m",
            next_step=f"`vitailor supernets show {supernet_id}` lists the widths",
        )
    with connect(url, data) as client:
        _started(client, client.extract(supernet_id, asked), wait, as_json)


@app.command("import")
def import_supernet(
    path: Annotated[str, typer.Argument(help="Checkpoint of Scala's released code, below the server's import root.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call the supernet.")] = None,
    smallest: Annotated[float | None, typer.Option("--smallest", help="The least trained width, as a share.")] = None,
    step: Annotated[float | None, typer.Option("--step", help="From one trained width to the next.")] = None,
    num_heads: Annotated[int | None, typer.Option("--num-heads", help="Attention heads of each block.")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Images with the checkpoint's classes, to measure the widths on.")
    ] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Import a slimmable network; what the file tells itself need not be said."""
    asked = _given(path=path, name=name, smallest=smallest, step=step, num_heads=num_heads, dataset=dataset)
    with connect(url, data) as client:
        _started(client, client.import_supernet(asked), wait, as_json)


@app.command("transfer")
def transfer(
    supernet_id: IdArgument,
    dataset: Annotated[str, typer.Option("--dataset", help="Id of a dataset, or the name of a built-in.")],
    neighbours: Annotated[int | None, typer.Option("--neighbours", help="Nearest neighbours that vote.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Judge the features of every offered width on other images."""
    asked = _given(dataset=dataset, k=neighbours)
    with connect(url, data) as client:
        _started(client, client.transfer(supernet_id, asked), wait, as_json)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _started(client: Client, job: Job, wait: bool, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
    else:
        print(job.id)
    if wait:
        wait_for(client, job.id)
