"""Let a paused search go on longer than was asked for at first, exactly as if that had been asked for at once.

What a search does next depends on its state alone, and neither on the number of generations nor on that of
evaluations, until one of them ends it. So both may be raised while the search is not over. Afterwards they may not: the
checkpoints that are kept hold the stages that followed, and no longer the generator of the search. One that has
succeeded is gone on with by another job, see :mod:`service.searches.continuation`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Checkpoint, Desired, Job, JobState
from service.errors import ErrorItem, InvalidState, ValidationFailed
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.states import shown_status, useful_actions

Json = dict[str, Any]

_BEFORE_SEARCH = ("data", "teacher", "supernet")


class ExtendRequest(BaseModel):
    """New totals, at least those that the job has."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={"examples": [{"generations": 40, "max_evaluations": 2000}]},
    )

    generations: int | None = Field(None, ge=1, le=100_000, description="After the random first one, in all.")
    max_evaluations: int | None = Field(None, ge=1, le=1_000_000, description="Candidates to be scored in all.")
    max_wall_seconds: int | None = Field(None, ge=1, le=31_536_000, description="Running time over all attempts.")

    max_device_hours: float | None = Field(
        None, gt=0, le=1e6, description="Time of devices over all attempts, those of helpers included."
    )

    @property
    def asks_for_more_search(self) -> bool:
        """Whether the search itself is to be longer, and not only its time."""
        return self.generations is not None or self.max_evaluations is not None


def extend(session: Session, job_id: UUID, wanted: ExtendRequest) -> Job | None:
    """Raise the totals of a paused job and queue it again; None: no such job. The caller commits.

    A repetition that finds the job going on with these totals changes nothing.

    Raises:
        ValidationFailed: a total is lower than the job's, or would have no effect.
        InvalidState: the job is not paused, or its search is over.
    """
    query = select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    job = session.scalars(query).one_or_none()
    if job is None:
        return None
    spec = extended_spec(job.spec, wanted)
    if job.state != JobState.PAUSED:
        if spec == job.spec and job.state in (JobState.QUEUED, JobState.RUNNING) and job.desired == Desired.RUN:
            return job
        raise _not_possible(job, _why_not_now(job))
    if wanted.asks_for_more_search:
        _require_open_search(session, job)
    job.spec = spec
    transitions.resume(session, job_id)
    return job


def extended_spec(spec: Json, wanted: ExtendRequest) -> Json:
    """The spec of a job with its new totals.

    Raises:
        ValidationFailed: a total is lower than the job's, or would have no effect.
    """
    search, budget = dict(spec.get("search") or {}), dict(spec.get("budget") or {})
    items = []
    if wanted == ExtendRequest():
        allowed = sorted(ExtendRequest.model_fields)
        raise ValidationFailed.of([ErrorItem("", "nothing_asked", "say what is to be longer", allowed)])
    groups = {"generations": search, "max_evaluations": search, "max_wall_seconds": budget, "max_device_hours": budget}
    for name, group in groups.items():
        total = getattr(wanted, name)
        if total is None:
            continue
        if group.get(name) is None:
            items.append(ErrorItem(f"/{name}", "no_such_limit", f"this job has no {name} that could end it"))
        elif total < group[name]:
            least = f"at least {group[name]}"
            items.append(ErrorItem(f"/{name}", "too_low", f"{total} is below the job's {group[name]}", least))
        else:
            group[name] = total
    if items:
        raise ValidationFailed.of(items)
    if wanted.asks_for_more_search:
        _require_effect(spec["search"], search)
    changed = {"search": search} if search else {}
    return {**spec, **changed, **({"budget": budget} if budget else {})}


def _require_effect(before: Json, after: Json) -> None:
    """A search ends with the first of its limits, so raising the other alone would be a silent no."""
    if after["algorithm"] == "listed":
        detail = "this search scores the architectures that its body lists, and no others"
        raise ValidationFailed.of([ErrorItem("/max_evaluations", "no_effect", detail)])
    if after.get("evaluation", {}).get("racing") is not None:
        detail = "racing spreads its error over the evaluations that were asked for; with more it drops other networks"
        raise ValidationFailed.of([ErrorItem("", "racing_fixes_length", detail, "a new search with a larger total")])
    by_generations, by_evaluations = after["population"] * (after["generations"] + 1), after["max_evaluations"]
    raised = [name for name in ("generations", "max_evaluations") if after[name] > before[name]]
    if raised == ["generations"] and before["population"] * (before["generations"] + 1) >= by_evaluations:
        detail = f"max_evaluations {by_evaluations} ends the search before generation {before['generations']} is full"
        raise ValidationFailed.of([ErrorItem("/generations", "no_effect", detail, "raise max_evaluations too")])
    if raised == ["max_evaluations"] and before["max_evaluations"] >= by_generations:
        detail = f"{after['generations']} generations end the search at {by_generations} candidates"
        raise ValidationFailed.of([ErrorItem("/max_evaluations", "no_effect", detail, "raise generations too")])


def _require_open_search(session: Session, job: Job) -> None:
    newest = select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.n.desc()).limit(1)
    point = session.scalars(newest).one_or_none()
    if point is None or (point.stage in _BEFORE_SEARCH and "search" not in point.state.get("outputs", {})):
        return
    saved = point.state.get("state") or {}
    if point.stage != "search" or "search" in point.state.get("outputs", {}) or saved.get("baseline") is not None:
        raise _not_possible(job, "its search is over; start another one with warm_start and search.population_from")
    if "search" not in saved:  # it has not begun to score
        return
    state, search = saved["search"]["state"], job.spec["search"]
    asked = state["told"] + len(state["pending"])
    if asked == search["max_evaluations"] and asked % search["population"]:
        # With more evaluations from the start, this generation would have been bred larger.
        raise _not_possible(job, f"its last generation was cut to {search['max_evaluations']} evaluations already")


def _why_not_now(job: Job) -> str:
    if job.state in (JobState.QUEUED, JobState.RUNNING):
        return "pause it first"
    return "only a paused search and one that has succeeded can be"


def _not_possible(job: Job, why: str) -> InvalidState:
    state, desired = JobState(job.state), Desired(job.desired)
    return InvalidState(
        f"Job {format_id(IdKind.JOB, job.id)} is {shown_status(state, desired)} and cannot be extended: {why}.",
        extra={"state": job.state, "allowed": [action.value for action in useful_actions(state, desired)]},
    )
