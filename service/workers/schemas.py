"""What the API shows of workers."""

from __future__ import annotations

from pydantic import Field

from service.pagination import Page
from service.schemas import Answer, Json, UtcTime


class WorkerView(Answer):
    """A process that runs jobs."""

    name: str
    alive: bool = Field(description="Whether it has said so lately.")
    draining: bool = Field(description="It finishes what it does and takes nothing new.")
    deaf: bool = Field(description="It lives, but messages of the broker do not reach it: it takes no jobs.")
    queues: list[str]
    slots: int
    busy: int
    info: Json = Field(description="Host, versions, devices.")
    started_at: UtcTime
    heartbeat_at: UtcTime


class WorkerList(Page[WorkerView]):
    """Workers by name."""
