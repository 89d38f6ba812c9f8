"""Blobs in a local folder, written so that a power loss leaves either the whole blob or none."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from service.store.base import (
    BLOBS,
    CHUNK_BYTES,
    OWNER,
    ArtifactStore,
    Stored,
    blob_key,
    check_range,
    chunks_of,
    key_digest,
    measure,
    partial_file,
    remove_abandoned,
)
from service.store.errors import BlobMissing
from service.store.room import room_below


class LocalStore(ArtifactStore):
    """Blobs below ``root``, a folder of the service's own that nobody else may enter.

    Object-store libraries are not used here: they sync neither the file nor its folder, and follow symbolic links.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root.resolve()
        self._partial = self._root / "partial"
        self._partial.mkdir(mode=0o700, exist_ok=True)

    def put_file(self, path: Path) -> Stored:
        """See the base class."""
        stored = measure(path)
        if self._is_there(stored.sha256):
            return stored
        with room_below(self._root), partial_file(self._partial) as partial:
            # Measured anew: the name must be that of the bytes written, even if the file changed in between.
            stored = _copy_durably(path, partial)
            target = self._root / blob_key(stored.sha256)
            self._make_folders(target.parent)
            partial.replace(target)
            _sync_folder(target.parent)
        return stored

    def open_range(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """See the base class."""
        check_range(start, end)
        path = self._root / blob_key(sha256)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise BlobMissing(sha256) from None
        return _Chunks(fd, start, end)

    def exists(self, sha256: str) -> bool:
        """See the base class."""
        return (self._root / blob_key(sha256)).is_file()

    def delete(self, sha256: str) -> None:
        """See the base class. On a local folder, readers that have the blob open go on undisturbed."""
        (self._root / blob_key(sha256)).unlink(missing_ok=True)

    def digests(self, min_age_s: float = 0.0) -> Iterator[str]:
        """See the base class."""
        limit = time.time() - min_age_s
        for path in (self._root / BLOBS).glob("*/*"):
            sha256 = key_digest(path.relative_to(self._root).as_posix())
            with suppress(FileNotFoundError):  # somebody has just deleted it
                if sha256 is not None and path.stat().st_mtime <= limit:
                    yield sha256

    def claim(self, owner: str) -> str:
        """See the base class."""
        path = self._root / OWNER
        if not path.exists():
            with room_below(self._root), partial_file(self._partial) as partial, suppress(FileExistsError):
                _write_durably(owner.encode("ascii"), partial)
                os.link(partial, path)
                _sync_folder(self._root)
        return path.read_text("ascii")

    def _is_there(self, sha256: str) -> bool:
        """Whether the blob is there; if so, it is as young as if it were stored now."""
        try:
            os.utime(self._root / blob_key(sha256))
        except FileNotFoundError:
            return False
        return True

    def remove_abandoned(self) -> int:
        """See the base class."""
        return remove_abandoned(self._partial)

    def _make_folders(self, folder: Path) -> None:
        """Make the folder and its parents, each durable before something is put into it."""
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


class _Chunks(Iterator[bytes]):
    """An open range of a file; closes it at its end or with the last reference."""

    def __init__(self, fd: int, start: int, end: int | None) -> None:
        self._file = os.fdopen(fd, "rb", buffering=0)
        self._file.seek(start)
        self._left = None if end is None else end - start

    def __next__(self) -> bytes:
        wanted = CHUNK_BYTES if self._left is None else min(CHUNK_BYTES, self._left)
        chunk = self._file.read(wanted) if not self._file.closed else b""
        if not chunk:
            self._file.close()
            raise StopIteration
        if self._left is not None:
            self._left -= len(chunk)
        return chunk

    def __del__(self) -> None:
        self._file.close()


def _write_durably(content: bytes, target: Path) -> None:
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _copy_durably(source: Path, target: Path) -> Stored:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        for chunk in chunks_of(source):
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Stored(digest.hexdigest(), size)


def _sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
