"""A small file system that can be filled and emptied."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """``size_kb`` of memory, mounted at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, leave_kb: int = 0) -> None:
        """Leave so much room and no more."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            if leave_kb:
                file.truncate(max(0, file.tell() - leave_kb * 1024))

    def free(self) -> None:
        """Give all room back."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, size_kb: int) -> Iterator[SmallDisk]:
    """Mount one, which needs root's rights; the test is skipped without them."""
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size_kb}k,mode=0711"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
