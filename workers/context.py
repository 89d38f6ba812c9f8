"""What every part of a worker process needs, built once by the entry point."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from sqlalchemy.orm import Session, sessionmaker

from service.settings import Settings
from service.store import ArtifactStore
from workers.child import TrainerCommand


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Settings, connections and wishes that all slots of a worker process share.

    Attributes:
        settings: of the process.
        sessions: makes sessions for any thread.
        store: where promoted files go.
        name: of this worker process, unique among all that share the database.
        command: the program that trains.
        draining: set once the process has been asked to end; running jobs are then handed back.
    """

    settings: Settings
    sessions: sessionmaker[Session]
    store: ArtifactStore
    name: str
    command: TrainerCommand
    draining: threading.Event = field(default_factory=threading.Event)
