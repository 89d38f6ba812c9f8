"""What an import noticed: each finding names a file or row and the reason, and is kept in the dataset's report."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# A report is shown to people: beyond this many examples of one kind only their number is informative.
MAX_LISTED = 200


class FindingCode(StrEnum):
    """Kinds of findings. Rejected rows are left out of the dataset, the others are only reported."""

    UNREADABLE_IMAGE = "unreadable_image"
    INVALID_LABEL = "invalid_label"
    IGNORED = "ignored"
    EMPTY_CLASS = "empty_class"
    CLASS_WITHOUT_TRAINING_IMAGES = "class_without_training_images"
    UNKNOWN_SPLIT = "unknown_split"


REJECTING = frozenset({FindingCode.UNREADABLE_IMAGE, FindingCode.INVALID_LABEL, FindingCode.UNKNOWN_SPLIT})
"""Codes whose rows are left out; their share of all rows is bounded, see ``workers.data.importing``."""


@dataclass(slots=True)
class Findings:
    """Collects findings and counts; grows while an import runs."""

    counts: Counter[FindingCode] = field(default_factory=Counter)
    listed: list[dict[str, str]] = field(default_factory=list)

    def add(self, code: FindingCode, path: str, reason: str) -> None:
        """Note one finding; of each code the first :data:`MAX_LISTED` are listed."""
        self.counts[code] += 1
        if self.counts[code] <= MAX_LISTED:
            self.listed.append({"code": code.value, "path": path, "reason": reason})

    @property
    def rejected(self) -> int:
        """Rows that were left out."""
        return sum(self.counts[code] for code in REJECTING)

    def to_json(self) -> dict[str, Any]:
        """``{"findings": [...], "finding_counts": {code: n}}``."""
        return {
            "findings": list(self.listed),
            "finding_counts": {code.value: n for code, n in sorted(self.counts.items())},
        }


def printable(name: str) -> str:
    """A file name as text that JSON can hold: bytes that are not UTF-8 are shown as ``\\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
