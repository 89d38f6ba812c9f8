"""What can go wrong with a blob. A full disk is ``service.errors.StorageFull``, a silent server ``Unavailable``."""

from __future__ import annotations


class BlobError(Exception):
    """Base of the errors that concern one blob.

    Attributes:
        sha256: the digest that was asked for.
    """

    def __init__(self, sha256: str, message: str) -> None:
        super().__init__(message)
        self.sha256 = sha256


class BlobMissing(BlobError):
    """The store has no blob of this digest."""

    def __init__(self, sha256: str) -> None:
        super().__init__(sha256, f"blob {sha256} is not in the store")


class BlobCorrupt(BlobError):
    """The bytes of a blob do not have its digest."""

    def __init__(self, sha256: str, found: str) -> None:
        super().__init__(sha256, f"blob {sha256} is damaged: its bytes have the digest {found}")
