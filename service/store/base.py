"""The artifact store: blobs named by the SHA-256 of their bytes, so equal content is stored once and never changes.

A blob lies at ``blobs/sha256/<first 2 digits>/<other 62>`` below the store's root, whatever the kind of store.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.store.errors import BlobCorrupt
from service.store.room import room_below

CHUNK_BYTES = 2**20
_PARTIAL = ".partial-"
BLOBS = "blobs/sha256"
"""The folder, or prefix, below which all blobs lie."""
OWNER = "owner"
"""Where, below the root, the owner of the blobs is written."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A file in the store: ``sha256`` is its digest in lower-case hex, ``size`` its length in bytes."""

    sha256: str
    size: int


class ArtifactStore(ABC):
    """Where the bytes of artifacts are. Safe to use from several threads and processes at once."""

    @abstractmethod
    def put_file(self, path: Path) -> Stored:
        """Store a file. When it returns, the blob is whole and outlives a power loss.

        Storing content that is there already costs one read. Several writers of the same content all succeed.

        Raises:
            OSError: the file cannot be read.
            StorageFull: no room left; nothing was stored.
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def open_range(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from ``start`` to before ``end`` (default: the end) in chunks of at most about 1 MiB.

        The blob is opened by the call, not by the first chunk. The digest is not checked: use :meth:`fetch` for that.

        Raises:
            BlobMissing: there is no such blob.
            Unavailable: the store does not answer.
            ValueError: ``sha256`` is not a digest, or not ``0 <= start <= end``.
        """

    @abstractmethod
    def exists(self, sha256: str) -> bool:
        """Whether the blob is there."""

    @abstractmethod
    def delete(self, sha256: str) -> None:
        """Remove the blob; harmless when there is none. Readers that have it open may fail."""

    @abstractmethod
    def digests(self, min_age_s: float = 0.0) -> Iterator[str]:
        """Digests, in any order, of the blobs that were stored or stored again at least so many seconds ago.

        Raises:
            Unavailable: the store does not answer.
        """

    @abstractmethod
    def claim(self, owner: str) -> str:
        """Whose blobs these are: ``owner``, unless somebody else has claimed the store before.

        Args:
            owner: ASCII text.

        Raises:
            StorageFull: no room left.
            Unavailable: the store does not answer.
        """

    def remove_abandoned(self) -> int:
        """Remove what writers that were killed have left half-written; how many files. Never touches a living one's."""
        return 0  # an object store shows no half-written object

    async def open_range_async(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """:meth:`open_range` without blocking the event loop."""
        chunks = await asyncio.to_thread(self.open_range, sha256, start, end)
        return _in_threads(chunks)

    def fetch(self, sha256: str, target: Path) -> None:
        """Copy a blob to ``target``, which appears only when all bytes have arrived and have the right digest.

        Raises:
            BlobMissing, BlobCorrupt, Unavailable, StorageFull
        """
        digest = hashlib.sha256()
        with room_below(target.parent), partial_file(target.parent) as partial:
            with partial.open("wb") as file:
                for chunk in self.open_range(sha256):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise BlobCorrupt(sha256, digest.hexdigest())
            partial.replace(target)


def blob_key(sha256: str) -> str:
    """The place of a blob below the root.

    Raises:
        ValueError: ``sha256`` is not 64 lower-case hex digits.
    """
    if not _DIGEST.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a SHA-256 digest of 64 lower-case hex digits")
    return f"{BLOBS}/{sha256[:2]}/{sha256[2:]}"


def key_digest(key: str) -> str | None:
    """The digest of which :func:`blob_key` made a key; None for any other key."""
    digest = key.removeprefix(f"{BLOBS}/").replace("/", "", 1)
    return digest if _DIGEST.fullmatch(digest) and blob_key(digest) == key else None


def check_range(start: int, end: int | None) -> None:
    """Raise ``ValueError`` unless ``0 <= start <= end``."""
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"byte range from {start} to {end}: expected 0 <= start <= end")


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def measure(path: Path) -> Stored:
    """Digest and size of a file, by reading it once."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks_of(path):
        digest.update(chunk)
        size += len(chunk)
    return Stored(digest.hexdigest(), size)


@contextmanager
def partial_file(folder: Path) -> Iterator[Path]:
    """A new file of mode 0600 in ``folder`` for a copy under way; removed unless it was moved elsewhere.

    It is locked meanwhile, and the kernel frees the lock when its holder dies: see :func:`remove_abandoned`.
    """
    while True:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_PARTIAL, delete=False) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:  # taken for abandoned before it was locked
                continue
            path = Path(file.name)
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)
            return


def remove_abandoned(folder: Path) -> int:
    """Remove partial files in ``folder`` whose writers were killed; how many."""
    removed = 0
    for path in folder.glob(f"{_PARTIAL}*"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed += 1
    return removed


async def _in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    # No explicit close: a cancelled await leaves the thread inside the iterator, where it cannot be closed.
    # The file closes with the last reference, which may be that thread's.
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk
