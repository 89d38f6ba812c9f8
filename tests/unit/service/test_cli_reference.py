"""The reference of settings is complete and up to date."""

from __future__ import annotations

from pathlib import Path

from service.cli.reference import settings_reference
from service.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_every_setting_says_what_it_means() -> None:
    silent = [name for name, field in Settings.model_fields.items() if not field.description]
    assert silent == []


def test_the_page_is_what_make_docs_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_reference(), "run `make docs`"
