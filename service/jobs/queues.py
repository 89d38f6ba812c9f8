"""Names of the lines that jobs wait in. Apart from the doorbell, so that the API need not import Celery."""

from __future__ import annotations

QUEUES = ("cpu", "gpu")
"""Every queue there is. Publishing to another one is an error instead of a message that nobody reads."""

DEFAULT_QUEUE = QUEUES[0]
"""Where jobs wait unless they ask for a device. Workers with a GPU serve it too, and use what they have."""
