"""What can be done with a job: show it, act on it, wait for a change."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from service.datasets.builtin import BUILTINS
from service.datasets.repository import DatasetRepository
from service.db.models import Desired, Job, JobKind, JobState
from service.errors import InvalidState, NotFound
from service.events.listener import POLL_S
from service.http import weak_etag
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.extension import ExtendRequest, extend
from service.jobs.repository import JobRepository
from service.jobs.schemas import JobView
from service.jobs.states import Action, shown_status
from service.jobs.values import Accepted, Refused
from service.searches.continuation import continue_search
from service.services import Services

_TRANSITIONS: Mapping[Action, Callable[[Session, UUID], Accepted | Refused | None]] = MappingProxyType(
    {
        Action.CANCEL: transitions.request_cancel,
        Action.PAUSE: transitions.request_pause,
        Action.RESUME: transitions.resume,
        Action.RETRY: transitions.retry,
    }
)


async def get_job(session: AsyncSession, owner: str, job_id: UUID) -> Job:
    """The job as it is now.

    Raises:
        NotFound: no such job.
    """
    job = await JobRepository(session, owner).get(job_id)
    if job is None:
        raise NotFound(f"There is no job {format_id(IdKind.JOB, job_id)}.")
    return job


async def show_jobs(
    session: AsyncSession, owner: str, jobs: Sequence[Job], worker_lost_after_s: float
) -> list[JobView]:
    """Jobs as clients see them, with the places of those that are queued."""
    repository = JobRepository(session, owner)
    places = await repository.queue_places(jobs, worker_lost_after_s)
    helpers = await repository.helper_counts(jobs)
    return [JobView.of(job, places.get(job.id), helpers.get(job.id, 0)) for job in jobs]


async def show_job(session: AsyncSession, owner: str, job: Job, worker_lost_after_s: float) -> JobView:
    """One job as clients see it."""
    (view,) = await show_jobs(session, owner, [job], worker_lost_after_s)
    return view


def job_etag(view: JobView) -> str:
    """Changes with everything that a client would want to know of; place in the queue and helpers have no revision."""
    place = f"-{view.queue.position}-{view.queue.reason}" if view.queue else ""
    helpers = f"-{view.helpers}h" if view.helpers else ""
    return weak_etag(f"{view.revision}{place}{helpers}")


async def act_on_job(session: AsyncSession, owner: str, job_id: UUID, action: Action) -> Job:
    """Let the job's state machine decide, and return the job as it is then. The caller commits.

    Raises:
        NotFound: no such job.
        InvalidState: the state does not allow the action; carries those that it allows.
    """
    job = await get_job(session, owner, job_id)
    if action is Action.RETRY:
        await _require_dataset(session, owner, job)
    outcome = await session.run_sync(_TRANSITIONS[action], job_id)
    match outcome:
        case Accepted(job=job):
            return job
        case Refused(job=job, allowed=allowed):
            names = [allowed_action.value for allowed_action in allowed]
            instead = f"possible is: {', '.join(names)}" if names else "a job in this state stays as it is"
            status = shown_status(JobState(job.state), Desired(job.desired))
            raise InvalidState(
                f"Job {format_id(IdKind.JOB, job.id)} is {status}, which does not allow to {action} it; {instead}.",
                extra={"state": job.state, "allowed": names},
            )
        case None:
            raise NotFound(f"There is no job {format_id(IdKind.JOB, job_id)}.")


async def extend_job(session: AsyncSession, owner: str, job_id: UUID, wanted: ExtendRequest) -> Job:
    """Let a search go on longer: a paused one itself, one that has succeeded as a new job. The caller commits.

    Raises:
        NotFound: no such job.
        ValidationFailed, InvalidState: see :func:`service.jobs.extension.extend` and
            :func:`service.searches.continuation.continue_search`.
    """
    found = await get_job(session, owner, job_id)
    if found.state == JobState.SUCCEEDED:
        return await continue_search(session, owner, found, wanted)
    job = await session.run_sync(extend, job_id, wanted)
    if job is None:
        raise NotFound(f"There is no job {format_id(IdKind.JOB, job_id)}.")
    return job


async def _require_dataset(session: AsyncSession, owner: str, job: Job) -> None:
    """Refuse to run a job whose dataset was deleted, and keep the dataset until the transaction ends."""
    if job.kind != JobKind.DATASET_IMPORT:
        asked = job.spec.get("dataset")
        if asked is None or asked["id"] in BUILTINS:
            return
    if job.dataset_id is None or await DatasetRepository(session, owner).get_kept(job.dataset_id) is None:
        raise InvalidState(
            f"The dataset of job {format_id(IdKind.JOB, job.id)} was deleted, so it cannot run again.",
            extra={"state": job.state, "allowed": []},
        )


async def wait_for_job(
    parts: Services,
    owner: str,
    job_id: UUID,
    *,
    seen: Callable[[JobView], bool],
    wait_s: float,
    is_gone: Callable[[], Awaitable[bool]],
) -> JobView:
    """The job once it is news or done, and at the latest after ``wait_s``.

    No session is held while waiting.

    Args:
        seen: whether the client knows the job in this form.
        is_gone: whether the client still listens.

    Raises:
        NotFound: no such job.
    """
    deadline = time.monotonic() + wait_s
    with parts.listener.watch(job_id) as watch:
        while True:
            async with parts.sessions() as session:
                job = await get_job(session, owner, job_id)
                view = await show_job(session, owner, job, parts.settings.lease_s)
            left_s = deadline - time.monotonic()
            if not seen(view) or view.done or left_s <= 0 or parts.listener.is_closing or await is_gone():
                return view
            await watch.wait(min(left_s, POLL_S))
