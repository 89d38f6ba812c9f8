"""The HTTP application: routes, middleware, and the parts that live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import PackageNotFoundError, version

import structlog
from fastapi import FastAPI
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from service import health, problems
from service.agents import routes as agents
from service.architectures import routes as architectures
from service.architectures import spaces
from service.artifacts import routes as artifacts
from service.auth import Authentication
from service.candidates import routes as candidates
from service.datasets import routes as datasets
from service.db.engine import ApplicationName, async_engine, async_session_factory, conninfo
from service.devices import routes as devices
from service.events import routes as events
from service.events.listener import JobListener
from service.jobs import routes as jobs
from service.keys.service import BadKey, ensure_bootstrap_key
from service.middleware import RequestContext
from service.openapi import Api, operation_id
from service.searches import routes as searches
from service.services import Services
from service.settings import Settings
from service.store import open_store
from service.supernets import routes as supernets
from service.teachers import routes as teachers
from service.workers import routes as workers

log = structlog.get_logger(__name__)

_POOL_SIZE = 20
_RETRY_S = 2.0

_DESCRIPTION = """Neural architecture search for Vision Transformers.

Every request carries `Authorization: Bearer <key>`. Errors are problems (RFC 9457) with a stable `code`; `errors`
points at the fields at fault and says what is allowed there. Lists are pages: send `next` as `after`. Send an
`Idempotency-Key` with every POST that creates or acts, and repeat it without fear."""

_TAGS = [
    {"name": "search", "description": "Start a search, or ask what it would be."},
    {"name": "jobs", "description": "What runs, what it reports, and how to stop it."},
    {"name": "candidates", "description": "The scored architectures of a search."},
    {"name": "architectures", "description": "Networks, their cost, and the spaces that they come from."},
    {"name": "artifacts", "description": "The files that jobs make."},
    {"name": "datasets", "description": "Images to search on."},
    {"name": "teachers", "description": "Frozen networks that students learn from."},
    {"name": "supernets", "description": "Shared weights of a space."},
    {"name": "devices", "description": "Latency targets, and the tables that predict latency on them."},
    {"name": "agents", "description": "Machines elsewhere that measure latencies, and may do nothing else."},
    {"name": "workers", "description": "Who runs jobs."},
    {"name": "health", "description": "For probes; no key needed."},
]

_ROUTERS = (
    searches.router,
    jobs.router,
    events.router,
    candidates.router,
    architectures.router,
    spaces.router,
    artifacts.router,
    datasets.router,
    teachers.router,
    supernets.router,
    devices.router,
    agents.router,
    workers.router,
    health.router,
)


def create_app(settings: Settings) -> FastAPI:
    """Build the application. Nothing is connected before its lifespan starts, and the servers need not be up then."""
    app = Api(
        title="ViTailor",
        version=_version(),
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lambda app: _lifespan(app, settings),
        generate_unique_id_function=operation_id,
        redirect_slashes=False,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    for router in _ROUTERS:
        app.include_router(router)
    problems.install(app)
    app.add_middleware(Authentication)
    app.add_middleware(RequestContext)  # added last, so outermost
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, settings: Settings) -> AsyncIterator[None]:
    engine = async_engine(settings.database_url, ApplicationName.API, pool_size=_POOL_SIZE)
    listener = JobListener(conninfo(settings.database_url, ApplicationName.API))
    sessions = async_session_factory(engine)
    app.state.services = Services(settings, sessions, open_store(settings.store_location), listener)
    tasks = [asyncio.create_task(listener.run(), name="job listener")]
    if settings.bootstrap_key is not None:
        key = settings.bootstrap_key.get_secret_value()
        tasks.append(asyncio.create_task(_register_key(sessions, key), name="bootstrap key"))
    try:
        yield
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await engine.dispose()


async def _register_key(sessions: async_sessionmaker[AsyncSession], key: str) -> None:
    """Make the operator's key known, as soon as the database can be reached and has its tables."""
    while True:
        try:
            async with sessions.begin() as session:
                await session.run_sync(ensure_bootstrap_key, key)
            return
        except (*problems.DATABASE_AWAY, ProgrammingError) as error:
            log.warning("bootstrap_key_waits", error=str(error).splitlines()[0])
            await asyncio.sleep(_RETRY_S)
        except BadKey as error:
            log.error("bootstrap_key_refused", error=str(error))
            return


def _version() -> str:
    try:
        return version("vitailor")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"
