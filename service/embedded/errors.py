"""What can keep the embedded stack from running. Messages go to the person at the terminal and say what to do."""

from __future__ import annotations


class EmbeddedError(Exception):
    """The embedded stack cannot start."""


class FolderInUse(EmbeddedError):
    """Another process works in the data folder."""


class FolderUnreachable(EmbeddedError):
    """The account that the servers run as cannot enter the data folder."""


class ClusterUnusable(EmbeddedError):
    """The database files in the data folder are not ones that this PostgreSQL can serve."""


class ChildFailed(EmbeddedError):
    """A process did not get ready."""
