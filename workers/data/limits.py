"""Bounds of an import. Whatever a file claims, reading it takes no more memory, disk or time than is said here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.data.source import SourceError

MIB = 1024 * 1024

MAX_FILE_BYTES = 256 * MIB
"""Larger files are findings: they are read into memory whole."""

MAX_TEXT_BYTES = 128 * MIB
"""Of a manifest, which is read whole. Half a million rows of usual length have 50 MiB."""

MAX_RATIO = 200
"""Bytes that a byte of an archive may expand to. Photographs hardly shrink, drawings by a factor of ten to fifty."""

RATIO_FREE_BYTES = 64 * MIB
"""Nobody is harmed by less than this, whatever its ratio."""

MAX_PATH_BYTES = 4096
"""Of a path in an archive, as file systems have it."""

MAX_DEPTH = 64
"""Folders in folders of a path."""


class LimitExceeded(SourceError):
    """Reading on would take more than an import may; the message names the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    """What an operator allows.

    Attributes:
        max_files: files, folders and other members of one dataset.
        max_bytes: bytes of all files, unpacked.
        max_s: seconds that an import may take.
    """

    max_files: int = 500_000
    max_bytes: int = 64 * 1024 * MIB
    max_s: float = 6 * 3600.0


@dataclass(slots=True)
class Guard:
    """Counts what an import takes, and lets it be stopped.

    Attributes:
        limits: what is allowed.
        poll: called often; may raise to stop.
    """

    limits: ImportLimits = field(default_factory=ImportLimits)
    poll: Callable[[], None] = lambda: None
    _members: int = 0
    _bytes: int = 0
    _started: float = field(default_factory=time.monotonic)

    def check(self) -> None:
        """Call between two steps of bounded length.

        Raises:
            LimitExceeded: the time is up.
        """
        self.poll()
        if time.monotonic() - self._started > self.limits.max_s:
            raise LimitExceeded(f"the import took longer than {self.limits.max_s:g} s (VITAILOR_IMPORT_MAX_S)")

    def member(self, size: int = 0) -> None:
        """Count one member of ``size`` bytes.

        Raises:
            LimitExceeded: one too many, or too many bytes.
        """
        self._members += 1
        if self._members > self.limits.max_files:
            raise LimitExceeded(f"more than {self.limits.max_files:,} files (VITAILOR_IMPORT_MAX_FILES)")
        self._bytes += size
        if self._bytes > self.limits.max_bytes:
            raise LimitExceeded(
                f"the files have more than {self.limits.max_bytes:,} bytes (VITAILOR_IMPORT_MAX_BYTES) when unpacked"
            )
        if self._members % 1024 == 0:
            self.check()

    def expanded(self, packed: int, unpacked: int) -> None:
        """Compare what an archive holds, or claims to hold, with its size.

        Raises:
            LimitExceeded: no honest archive of images is packed so tightly, or too many bytes.
        """
        if unpacked > self.limits.max_bytes:
            raise LimitExceeded(
                f"the archive unpacks to more than {self.limits.max_bytes:,} bytes (VITAILOR_IMPORT_MAX_BYTES)"
            )
        if unpacked > RATIO_FREE_BYTES and unpacked > MAX_RATIO * packed:
            raise LimitExceeded(
                f"the archive of {packed:,} bytes unpacks to {unpacked:,} bytes or more, which is over "
                f"{MAX_RATIO} times as much: a decompression bomb"
            )
