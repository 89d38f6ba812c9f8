"""Whether the process lives, can work, and has somebody to work for it. These routes need no key."""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog
from fastapi import APIRouter
from redis.asyncio import Redis
from redis.exceptions import RedisError
from sqlalchemy import select

from service.errors import Unavailable
from service.http import StrictRoute
from service.openapi import problems
from service.problems import DATABASE_AWAY
from service.schemas import Answer
from service.services import Services, ServicesDep
from service.workers.repository import WorkerRepository

log = structlog.get_logger(__name__)

router = APIRouter(tags=["health"], route_class=StrictRoute)

_PATIENCE_S = 3.0
_RETRY_AFTER = {"Retry-After": "5"}

Check = Literal["ok", "unavailable"]


class Health(Answer):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Answer):
    """Everything that requests need answers."""

    status: Literal["ok"] = "ok"
    database: Check
    broker: Check


class WorkerReadiness(Answer):
    """Somebody takes jobs."""

    status: Literal["ok"] = "ok"
    consuming: int


@router.get("/healthz", responses=problems(public=True))
async def get_health() -> Health:
    """The process is alive. Looks at nothing else."""
    return Health()


@router.get("/readyz", responses=problems(public=True))
async def get_readiness(parts: ServicesDep) -> Readiness:
    """Database and broker answer. Without the broker jobs are accepted, but none starts."""
    database, broker = await asyncio.gather(_database(parts), _broker(parts.settings.broker_url))
    if database != "ok" or broker != "ok":
        raise Unavailable(
            f"Not ready: the database is {database}, the broker is {broker}.",
            extra={"database": database, "broker": broker},
            headers=_RETRY_AFTER,
        )
    return Readiness(database=database, broker=broker)


@router.get("/readyz/workers", responses=problems(public=True))
async def get_worker_readiness(parts: ServicesDep) -> WorkerReadiness:
    """At least one worker is alive and takes jobs: it has lately heard a message, or all its slots are taken."""
    async with parts.sessions() as session:
        workers = WorkerRepository(session, parts.settings.lease_s)
        consuming, deaf = await workers.count_consuming(), await workers.count_deaf()
    if not consuming:
        detail = "No worker takes jobs; start one, or wait for it."
        if deaf:
            detail = (
                f"No worker takes jobs: {deaf} live, but no message reaches them; look at the broker and at the "
                "connections to it. Workers that were just started need a moment."
            )
        raise Unavailable(detail, extra={"consuming": 0, "deaf": deaf}, headers=_RETRY_AFTER)
    return WorkerReadiness(consuming=consuming)


async def _database(parts: Services) -> Check:
    try:
        async with asyncio.timeout(_PATIENCE_S), parts.sessions() as session:
            await session.execute(select(1))
    except (*DATABASE_AWAY, TimeoutError) as error:
        log.warning("database_unavailable", error=str(error))
        return "unavailable"
    return "ok"


async def _broker(url: str) -> Check:
    # Celery's name for a unix socket is not redis-py's.
    url = url.replace("redis+socket://", "unix://", 1)
    try:
        async with Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S) as broker:
            await broker.ping()
    except (RedisError, OSError) as error:
        log.warning("broker_unavailable", error=str(error))
        return "unavailable"
    return "ok"
