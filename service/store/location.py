"""From the store's URL to the store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from obstore.store import S3Store

from service.store.base import ArtifactStore
from service.store.local import LocalStore
from service.store.remote import RemoteStore


def open_store(url: str) -> ArtifactStore:
    """The store at ``file:///folder`` or ``s3://bucket/prefix``.

    Credentials, region and endpoint of S3 come from the usual ``AWS_*`` environment variables.

    Raises:
        ValueError: another scheme, or no folder or bucket.
        OSError: the folder cannot be made.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if parts.path.startswith("/") and parts.netloc in ("", "localhost"):
            return LocalStore(Path(url2pathname(parts.path)))
        case "s3" if parts.netloc:
            return RemoteStore(S3Store.from_url(url))
        case _:
            raise ValueError(f"store URL {url!r} is not understood; expected file:///folder or s3://bucket/prefix")
