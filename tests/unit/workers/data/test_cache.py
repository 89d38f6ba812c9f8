from __future__ import annotations

import fcntl
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from workers.data.cache import CacheKey, cached_pixels

KEY = CacheKey(digest="ab" * 32, size=2, channels=1)
PIXELS = np.arange(5 * 4, dtype=np.uint8).reshape(5, 1, 2, 2)


def batches() -> Iterator[np.ndarray]:
    yield PIXELS[:3]
    yield PIXELS[3:]


def never() -> Iterator[np.ndarray]:
    raise AssertionError("the entry exists, nothing is to be decoded")


def test_entry_is_built_once_and_mapped_read_only(tmp_path: Path) -> None:
    assert np.array_equal(cached_pixels(tmp_path, KEY, 5, batches), PIXELS)
    again = cached_pixels(tmp_path, KEY, 5, never)
    assert np.array_equal(again, PIXELS)
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable


@pytest.mark.parametrize("other", [CacheKey("cd" * 32, 2, 1), CacheKey("ab" * 32, 2, 3), CacheKey("ab" * 32, 4, 1)])
def test_other_keys_have_other_entries(tmp_path: Path, other: CacheKey) -> None:
    cached_pixels(tmp_path, KEY, 5, batches)
    shape = (5, other.channels, other.size, other.size)
    assert cached_pixels(tmp_path, other, 5, lambda: [np.ones(shape, np.uint8)]).all()


def test_interrupted_build_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    def interrupted() -> Iterator[np.ndarray]:
        yield PIXELS[:3]
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cached_pixels(tmp_path, KEY, 5, interrupted)
    assert not list(tmp_path.glob("*.partial"))  # on a full disk nothing else may fit
    assert np.array_equal(cached_pixels(tmp_path, KEY, 5, batches), PIXELS)


@pytest.mark.parametrize("count", [4, 6])
def test_wrong_number_of_images_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="images for cache entry"):
        cached_pixels(tmp_path, KEY, count, batches)


def _build(folder: Path, counter: Path) -> None:
    def counted() -> Iterator[np.ndarray]:
        with counter.open("a") as file:
            file.write("built\n")
        yield from batches()

    assert np.array_equal(cached_pixels(folder, KEY, 5, counted), PIXELS)


def test_processes_build_an_entry_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    counter = tmp_path / "counter"
    processes = [context.Process(target=_build, args=(tmp_path / "cache", counter)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert counter.read_text() == "built\n"


def test_waiting_for_another_builder_can_be_stopped(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    holder = os.open(tmp_path / f"{KEY.folder}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(Stop):
        cached_pixels(tmp_path, KEY, 5, batches, poll=stop)
    os.close(holder)
