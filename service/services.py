"""What the API process is made of, and how routes get at it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from service.events.listener import JobListener
from service.settings import Settings
from service.store import ArtifactStore


@dataclass(frozen=True, slots=True)
class Services:
    """The shared parts of one API process; they live from its start to its end."""

    settings: Settings
    sessions: async_sessionmaker[AsyncSession]
    store: ArtifactStore
    listener: JobListener


def services(request: Request) -> Services:
    """The parts that the application was started with."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]


async def _session(parts: ServicesDep) -> AsyncIterator[AsyncSession]:
    async with parts.sessions() as session:
        yield session


SessionDep = Annotated[AsyncSession, Depends(_session)]
"""One session for the request. Whoever changes something commits; the rest is rolled back."""
