"""Blobs in an object store such as S3, through obstore."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from service.errors import Unavailable
from service.store.base import (
    BLOBS,
    OWNER,
    ArtifactStore,
    Stored,
    blob_key,
    check_range,
    chunks_of,
    key_digest,
    measure,
)
from service.store.errors import BlobCorrupt, BlobMissing

# One request each: an open stream would run into the client's time-out when the reader is slow.
_REQUEST_BYTES = 8 * 2**20


class RemoteStore(ArtifactStore):
    """Blobs in ``objects``. Durable once a request is answered, by the word of the object store."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def put_file(self, path: Path) -> Stored:
        """See the base class.

        Raises:
            BlobCorrupt: the file changed while it was sent; nothing is stored.
        """
        stored = measure(path)
        key = blob_key(stored.sha256)
        if self.exists(stored.sha256):
            return stored
        digest = hashlib.sha256()

        def sent() -> Iterator[bytes]:
            for chunk in chunks_of(path):
                digest.update(chunk)
                yield chunk

        with _answers():
            obstore.put(self._objects, key, sent(), chunk_size=_REQUEST_BYTES)
        if digest.hexdigest() != stored.sha256:
            self.delete(stored.sha256)
            raise BlobCorrupt(stored.sha256, digest.hexdigest())
        return stored

    def open_range(self, sha256: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """See the base class."""
        check_range(start, end)
        key = blob_key(sha256)
        size = self._size(key)
        if size is None:
            raise BlobMissing(sha256)
        return self._ranges(key, start, size if end is None else min(end, size))

    def exists(self, sha256: str) -> bool:
        """See the base class."""
        return self._size(blob_key(sha256)) is not None

    def delete(self, sha256: str) -> None:
        """See the base class."""
        with _answers(), suppress(FileNotFoundError):
            obstore.delete(self._objects, blob_key(sha256))

    def digests(self, min_age_s: float = 0.0) -> Iterator[str]:
        """See the base class; content that was to be stored again counts from the first time."""
        limit = datetime.now(UTC) - timedelta(seconds=min_age_s)
        with _answers():
            for page in obstore.list(self._objects, prefix=BLOBS):
                for entry in page:
                    sha256 = key_digest(entry["path"])
                    if sha256 is not None and entry["last_modified"] <= limit:
                        yield sha256

    def claim(self, owner: str) -> str:
        """See the base class."""
        with _answers():
            with suppress(AlreadyExistsError):
                obstore.put(self._objects, OWNER, owner.encode("ascii"), mode="create")
            return bytes(obstore.get(self._objects, OWNER).bytes()).decode("ascii")

    def _size(self, key: str) -> int | None:
        try:
            with _answers():
                return obstore.head(self._objects, key)["size"]
        except FileNotFoundError:
            return None

    def _ranges(self, key: str, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            with _answers():
                chunk = bytes(obstore.get_range(self._objects, key, start=start, end=min(start + _REQUEST_BYTES, end)))
            start += len(chunk)
            yield chunk


@contextmanager
def _answers() -> Iterator[None]:
    try:
        yield
    except BaseError as error:
        raise Unavailable("the artifact store does not answer; try again later") from error
