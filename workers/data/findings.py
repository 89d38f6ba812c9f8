"""What an import noticed: each finding names a file or row and the reason, and is kept in the dataset's report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from service.datasets.findings import REJECTING, FindingCode

# A report is shown to people: beyond this many examples of one kind only their number is informative.
MAX_LISTED = 200

_LONGEST = 500  # characters of a path or reason in a report; names in archives may have thousands


@dataclass(slots=True)
class Findings:
    """Collects findings and counts; grows while an import runs."""

    counts: Counter[FindingCode] = field(default_factory=Counter)
    listed: list[dict[str, str]] = field(default_factory=list)

    def add(self, code: FindingCode, path: str, reason: str) -> None:
        """Note one finding; of each code the first :data:`MAX_LISTED` are listed."""
        self.counts[code] += 1
        if self.counts[code] <= MAX_LISTED:
            self.listed.append({"code": code.value, "path": _short(path), "reason": _short(reason)})

    @property
    def rejected(self) -> int:
        """Rows that were left out."""
        return sum(self.counts[code] for code in REJECTING)

    def first(self, code: FindingCode) -> str:
        """Path and reason of the first finding of a code, for messages."""
        found = next(found for found in self.listed if found["code"] == code.value)
        return f"{found['path']!r} ({found['reason']})"

    def present(self, codes: Iterable[FindingCode]) -> list[FindingCode]:
        """Those of the codes that were found, in their order."""
        return [code for code in codes if self.counts[code]]

    def to_json(self) -> dict[str, Any]:
        """``{"findings": [...], "finding_counts": {code: n}}``."""
        return {
            "findings": list(self.listed),
            "finding_counts": {code.value: n for code, n in sorted(self.counts.items())},
        }


def printable(name: str) -> str:
    """A file name as text that JSON can hold: bytes that are not UTF-8 are shown as ``\\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _short(text: str) -> str:
    # NUL cannot be stored in the database.
    text = text.replace("\0", "\\0")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
