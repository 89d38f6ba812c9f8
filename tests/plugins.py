"""Packages with plug-ins, put where the interpreter finds installed ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plugin"


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, points: dict[str, dict[str, str]]
) -> None:
    """Make a package with one module and these entry points by group, as pip would lay it out."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(folder))


def install_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of ``examples/plugin``, with the entry points that its ``pyproject.toml`` declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    code = (EXAMPLE / "vitailor_example.py").read_text()
    install(folder, monkeypatch, "vitailor_example", code, project["entry-points"])
