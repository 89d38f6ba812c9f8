"""Commands about what searches are made of: datasets and spaces."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import output
from service.cli.connection import DataOption, UrlOption, connect
from service.cli.jobs import JsonOption, WaitOption, wait_for


def list_datasets(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List the datasets that a search can name."""
    with connect(url, data) as client:
        datasets = client.datasets()
    if as_json:
        output.print_json(datasets)
    else:
        output.make_console().print(output.datasets_table(datasets))


def import_dataset(
    path: Annotated[str, typer.Argument(help="Folder or Parquet file, relative to the server's import root.")],
    name: Annotated[str, typer.Option("--name", help="What to call the dataset.")],
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Ignore class folders or the label column.")] = False,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    data: DataOption = None,
) -> None:
    """Import images that lie on the server."""
    with connect(url, data) as client:
        dataset = client.import_dataset(name, path, labels="none" if no_labels else "auto")
        if as_json:
            output.print_json(dataset)
        else:
            print(dataset.id)
        if wait and dataset.job is not None:
            wait_for(client, dataset.job)


def list_spaces(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List the named search spaces with their size and the range of each cost."""
    with connect(url, data) as client:
        spaces = client.spaces()
    if as_json:
        output.print_json(spaces)
    else:
        output.make_console().print(output.spaces_table(spaces))
