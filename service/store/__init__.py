"""The artifact store."""

from service.store.base import ArtifactStore, Stored
from service.store.errors import BlobCorrupt, BlobError, BlobMissing
from service.store.location import open_store

__all__ = ["ArtifactStore", "BlobCorrupt", "BlobError", "BlobMissing", "Stored", "open_store"]
