"""Which server a command talks to: a flag, the environment, or the one that runs on a data folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from service.cli.failures import NoServerKnown, UsageProblem
from service.client import Client
from service.settings import Settings

URL_VARIABLE = "VITAILOR_URL"
KEY_VARIABLE = "VITAILOR_API_KEY"
SERVER_FILE = "server.json"
KEY_FILE = "api-key"

UrlOption = Annotated[
    str | None, typer.Option("--url", envvar=URL_VARIABLE, help="The server; default: the one of the data folder.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Data folder of a local server; default: VITAILOR_DATA_DIR or .vitailor.")
]


def connect(url: str | None, data: Path | None) -> Client:
    """A client of the server that was named, or of the one that ``vitailor up`` runs on the data folder.

    Raises:
        NoServerKnown: when neither is to be found.
    """
    return Client(known_url(url, data), known_key(data))


def known_url(url: str | None, data: Path | None) -> str:
    """The server that was named, or the one of the data folder.

    Raises:
        NoServerKnown: when neither is to be found.
    """
    return url or _url_of(data or read_settings().data_dir)


def known_key(data: Path | None) -> str | None:
    """The key of the environment, or the one of the data folder; None without either."""
    return _key_of(data or read_settings().data_dir)


def read_settings(**given: object) -> Settings:
    """The settings of this process, with the values that flags gave.

    Raises:
        UsageProblem: naming the variable that holds a value which is not allowed.
    """
    try:
        return Settings(**{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise UsageProblem(
            f"VITAILOR_{field.upper()} is not usable: {message}" if first["loc"] else message,
            where=f"value {first['input']!r}" if first["loc"] else "",
            next_step="`vitailor settings` lists every variable with what it means",
        ) from error


def _url_of(folder: Path) -> str:
    path = folder / SERVER_FILE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["url"])
    except FileNotFoundError:
        raise NoServerKnown(folder) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageProblem(
            f"{path} cannot be read: {error}", next_step="name the server with --url or VITAILOR_URL"
        ) from error


def _key_of(folder: Path) -> str | None:
    if key := os.environ.get(KEY_VARIABLE):
        return key
    path = folder / KEY_FILE
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None  # the server says whether it needs one
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(
            f"the API key in {path} cannot be read: {error}", next_step=f"give the key in {KEY_VARIABLE}"
        ) from error
