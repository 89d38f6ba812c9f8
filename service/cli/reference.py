"""The reference of all settings, made from their definition."""

from __future__ import annotations

import html
from typing import Annotated

import typer

from service.keys.tokens import new_key
from service.settings import Settings

_HEAD = """# Configuration

Every process reads the same settings from environment variables, or from a file `.env` in its working folder.
Durations are seconds. This page is made by `make docs`.

| variable | default | meaning |
| --- | --- | --- |"""


def settings_reference() -> str:
    """All settings as a Markdown page: variable, default, meaning."""
    rows = [
        f"| `VITAILOR_{name.upper()}` | {_default(field.default)} | {_prose(field.description)} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join([_HEAD, *rows]) + "\n"


def show_settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the page docs/configuration.md.")] = False,
) -> None:
    """List every setting: environment variable, default and meaning."""
    if markdown:
        print(settings_reference(), end="")
        return
    for name, field in Settings.model_fields.items():
        print(f"VITAILOR_{name.upper()}\n    {field.description or ''} Default: {field.default}.")


def show_new_key() -> None:
    """Make a random API key, for VITAILOR_BOOTSTRAP_KEY."""
    print(new_key())


def _default(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def _prose(description: str | None) -> str:
    return html.escape(description or "", quote=False)
