"""What a doorbell sets off: claim and run jobs of a queue, one after the other, until there are none."""

from __future__ import annotations

from typing import Any

import structlog

from service.jobs.transitions import claim_next
from service.jobs.values import Claim
from workers.context import WorkerContext
from workers.heartbeat import Presence
from workers.lease import DATABASE_DOWN
from workers.supervisor import supervise

log = structlog.get_logger(__name__)


class JobLoop:
    """The slots of a worker process; each thread of the pool runs :meth:`wake` for one message."""

    def __init__(self, context: WorkerContext, presence: Presence, info: dict[str, Any]) -> None:
        self._context = context
        self._presence = presence
        self._info = info

    def wake(self, queue: str) -> int:
        """Run the queue's jobs by priority until none waits or the worker has to end; how many it ran.

        A doorbell rung too often finds nothing, and nothing is lost when this raises: the relay rings again.
        """
        done = 0
        with self._presence.busy():
            while not self._context.draining.is_set():
                claim = self._claim(queue)
                if claim is None:
                    break
                supervise(self._context, claim)
                done += 1
        return done

    def _claim(self, queue: str) -> Claim | None:
        try:
            with self._context.sessions.begin() as session:
                return claim_next(session, [queue], self._context.name, self._context.settings.lease_s, self._info)
        except DATABASE_DOWN as error:
            # A claim whose commit was not answered either did not happen, or is reaped when its lease runs out.
            log.warning("claim_failed", error=str(error).splitlines()[0])
            return None
