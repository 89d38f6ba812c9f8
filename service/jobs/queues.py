"""Names of the lines that jobs wait in."""

from __future__ import annotations

DEFAULT_QUEUE = "cpu"
"""Where jobs wait unless they ask for a device. Workers with a GPU serve it too, and use what they have."""
