"""Commands about devices: latency targets and their tables."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.failures import Exit, UsageProblem, problem_lines
from service.cli.jobs import JsonOption, WaitOption, wait_for
from service.client import Client, Device

_POLL_S = 2.0

app = typer.Typer(help="Latency targets: tables that predict what networks take on a machine.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The device, such as dev_0193...")]


@app.command("list")
def list_devices(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List devices with how far the predictions of their tables are off, the newest first."""
    with connect(url, data) as client:
        devices = client.devices()
    if as_json:
        output.print_json(devices)
    elif devices:
        output.make_console().print(output.devices_table(devices))
    else:
        print("no devices; measure this machine with `vitailor devices build NAME --space masktas-tiny`")


@app.command("show")
def show_device(device_id: IdArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Show a device: how far it is, what was measured and how, how far predictions are off."""
    with connect(url, data) as client:
        output.print_json(client.device(device_id))


@app.command("build")
def build_device(
    name: Annotated[str, typer.Argument(help="What to call the device.")],
    space: Annotated[str, typer.Option("--space", help="Name of the space whose networks are to be predicted.")],
    img_size: Annotated[int | None, typer.Option("--img-size", help="Side of the images in pixels.")] = None,
    in_chans: Annotated[int | None, typer.Option("--in-chans", help="1: grey, 3: RGB.")] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="Classes that the networks tell apart.")] = None,
    on: Annotated[
        str | None, typer.Option("--on", help="Who measures: worker (default), or agent:NAME of `vitailor agents`.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="torch or onnxruntime.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="fp32, bf16 or fp16.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Images of one call.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads of one operation.")] = None,
    percentile: Annotated[int | None, typer.Option("--percentile", help="Which of the timed calls counts.")] = None,
    runs: Annotated[int | None, typer.Option("--runs", help="Timed calls of each network.")] = None,
    held_out: Annotated[int | None, typer.Option("--held-out", help="Networks that the table is judged by.")] = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Have networks measured on a worker or by a device agent, and a latency table fitted to them."""
    build = {
        "space": _given(preset=space, img_size=img_size, in_chans=in_chans),
        **_given(
            num_classes=classes,
            on=on,
            runtime=runtime,
            precision=precision,
            batch_size=batch_size,
            threads=threads,
            percentile=percentile,
            runs=runs,
            held_out=held_out,
        ),
    }
    with connect(url, data) as client:
        device = client.add_device(name, build=build)
        if as_json:
            output.print_json(device)
        else:
            print(device.id)
        if wait:
            _wait_for(client, device)


@app.command("upload")
def upload_device(
    path: Annotated[Path, typer.Argument(help="A latency table as JSON, such as `download` writes.")],
    name: Annotated[str | None, typer.Option("--name", help="What to call the device; default: the file's.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Bring a latency table that was measured elsewhere."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageProblem(
            f"{path} cannot be read: {error}", where="PATH", allowed="a latency table as JSON"
        ) from error
    if not isinstance(table, dict):
        raise UsageProblem(f"{path} holds no JSON object", where="PATH", allowed="a latency table as JSON")
    with connect(url, data) as client:
        device = client.add_device(name or path.stem, table=table)
    if as_json:
        output.print_json(device)
    else:
        print(device.id)


@app.command("download")
def download_device(
    device_id: IdArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write to; default: named as the id.")] = None,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Write the latency table of a device to a file."""
    path = out or Path(f"{device_id}.json")
    with connect(url, data) as client:
        table = client.device_table(device_id)
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(path)


@app.command("delete")
def delete_device(device_id: IdArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Delete a device; jobs keep the table that they were given."""
    with connect(url, data) as client:
        client.delete_device(device_id)


def _wait_for(client: Client, device: Device) -> None:
    """Show how far the agent is, where one measures, then the job that makes the table.

    Raises:
        typer.Exit: unless there is a table in the end.
    """
    told = None
    while device.job is None and device.status not in ("ready", "failed"):
        if device.order is not None and device.order != told:
            told = device.order
            held = "measures" if told.lease_until is not None else "does not work on it now"
            print(f"agent {device.agent} {held}: {told.measured} of {told.planned} networks", flush=True)
        time.sleep(_POLL_S)
        device = client.device(device.id)
    if device.error is not None:
        print("\n".join(problem_lines(device.error)))
        raise typer.Exit(Exit.JOB_NOT_SUCCEEDED)
    if device.job is not None:
        wait_for(client, device.job)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
