"""Commands about device agents: machines elsewhere that measure latencies."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import output
from service.cli.connection import KEY_VARIABLE, DataOption, UrlOption, connect
from service.cli.jobs import JsonOption
from service.keys.tokens import new_key

app = typer.Typer(help="Device agents: machines elsewhere that measure latencies.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The agent: letters, digits, dots and dashes.")]


@app.command("list")
def list_agents(as_json: JsonOption = False, url: UrlOption = None, data: DataOption = None) -> None:
    """List device agents, with whether their machines are connected."""
    with connect(url, data) as client:
        agents = client.agents()
    if as_json:
        output.print_json(agents)
    elif agents:
        output.make_console().print(output.agents_table(agents))
    else:
        print("no agents; make one with `vitailor agents add NAME`")


@app.command("add")
def add_agent(name: NameArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Make a device agent and print its key, which is shown once; an agent that exists gets another key."""
    key = new_key()
    with connect(url, data) as client:
        client.put_agent(name, key)
        server = client.url
    print(f"key: {key}")
    print(f"next: on its machine, `{KEY_VARIABLE}=<key> vitailor device-agent --server {server} --name {name}`")


@app.command("remove")
def remove_agent(name: NameArgument, url: UrlOption = None, data: DataOption = None) -> None:
    """Forget a device agent and make its key invalid; tables that it measured stay."""
    with connect(url, data) as client:
        client.remove_agent(name)
