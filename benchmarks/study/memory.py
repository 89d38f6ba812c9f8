"""The file that a study's results are kept in."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Memory:
    """Results by entry, written after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: dict[str, Json] = json.loads(path.read_text())["entries"] if path.exists() else {}

    def keep(self, name: str, found: Json) -> None:
        """Add an entry."""
        self.entries[name] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One line an entry, which a diff of two versions can show.
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(self.entries[key])}" for key in sorted(self.entries))
        self._path.write_text(f'{{"entries": {{\n{lines}\n}}}}\n')


def commit() -> str:
    """The commit of the working tree, which results name."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip()
