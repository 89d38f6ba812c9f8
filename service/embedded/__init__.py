"""The whole service on one machine, under one launcher, with servers from its dependencies."""

from service.embedded.errors import (
    ChildFailed,
    ClusterUnusable,
    EmbeddedError,
    FolderInUse,
    FolderUnreachable,
)
from service.embedded.stack import Embedded

__all__ = ["ChildFailed", "ClusterUnusable", "Embedded", "EmbeddedError", "FolderInUse", "FolderUnreachable"]
