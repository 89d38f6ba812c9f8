"""Decoded datasets on local disk: one memory-mapped uint8 array for each (dataset, size, channels).

Jobs of a host share an entry, and the page cache holds it once for all of them. An entry is built once, under a lock,
and appears by renaming a finished folder, so a reader never sees half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workers.rundirs import LOCK, PARTIAL

# Part of the key: raise it when decoding or the layout changes, and old entries are no longer found.
_LAYOUT_VERSION = 2
_LOCK_POLL_S = 0.05

PixelBatches = Iterable[NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What an entry holds.

    Attributes:
        digest: of the dataset.
        size: side of the square images in pixels.
        channels: 1 or 3.
    """

    digest: str
    size: int
    channels: int

    @property
    def folder(self) -> str:
        """Name of the entry's folder."""
        return f"{self.digest}-{self.size}px-{self.channels}c-v{_LAYOUT_VERSION}"


def cached_pixels(
    cache_dir: Path,
    key: CacheKey,
    count: int,
    batches: Callable[[], PixelBatches],
    *,
    poll: Callable[[], None] = lambda: None,
) -> NDArray[np.uint8]:
    """Open an entry, building it first when it is missing.

    Args:
        cache_dir: folder of all entries.
        key: which entry.
        count: number of images ``N``.
        batches: yields uint8 arrays (n, channels, size, size), ``N`` images in all; called only to build.
        poll: called while waiting for another builder and after each batch; may raise to stop.

    Returns:
        Read-only memory map, uint8 (N, channels, size, size).

    Raises:
        ValueError: when ``batches`` yields another number of images.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    entry = cache_dir / key.folder
    if not entry.exists():
        with _lock(cache_dir / f"{key.folder}{LOCK}", poll):
            if not entry.exists():
                _build(entry, key, count, batches(), poll)
    pixels: NDArray[np.uint8] = np.load(entry / "pixels.npy", mmap_mode="r")
    return pixels


def _build(entry: Path, key: CacheKey, count: int, batches: PixelBatches, poll: Callable[[], None]) -> None:
    partial = entry.with_name(f"{entry.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)  # of a builder that was killed; the lock says that it is gone
    partial.mkdir()
    try:
        _write(partial, entry.name, key, count, batches, poll)
        partial.rename(entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # it may be what has filled the disk
        raise
    _fsync(entry.parent)


def _write(folder: Path, name: str, key: CacheKey, count: int, batches: PixelBatches, poll: Callable[[], None]) -> None:
    shape = (count, key.channels, key.size, key.size)
    done = 0
    # Not through a memory map: on a full disk the kernel kills who writes to one (SIGBUS), and nobody learns why.
    with (folder / "pixels.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for batch in batches:
            if done + len(batch) > count:
                raise ValueError(f"more than {count} images for cache entry {name}")
            file.write(np.ascontiguousarray(batch, dtype=np.uint8).data)
            done += len(batch)
            poll()
    if done != count:
        raise ValueError(f"{done} images for cache entry {name}, expected {count}")
    (folder / "entry.json").write_text(json.dumps({"digest": key.digest, "shape": shape}))
    for file_name in ("pixels.npy", "entry.json"):
        _fsync(folder / file_name)


@contextmanager
def _lock(path: Path, poll: Callable[[], None]) -> Iterator[None]:
    """Exclusive lock between processes of this host; the kernel frees it when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                poll()
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
