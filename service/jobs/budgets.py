"""When a job has used up what it may use. SQL expressions, for the statements of ``transitions``."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Float, and_, case, func, or_, select
from sqlalchemy.orm import aliased

from service.db.models import Attempt, Job, JobKind, JobState

_S_PER_H = 3600.0


def deadline(job: Job) -> ColumnElement[datetime] | None:
    """When an attempt that begins now will have used up the job's running time, or its device time if nobody helps.

    Waiting and pauses cost nothing. None: there is no limit.
    """
    budget: dict[str, Any] = job.spec.get("budget") or {}
    wall_s, device_h = budget.get("max_wall_seconds"), budget.get("max_device_hours")
    limits = [float(wall_s)] if wall_s is not None else []
    limits += [device_h * _S_PER_H] if device_h is not None else []
    return func.now() + timedelta(seconds=max(0.0, min(limits) - job.device_seconds)) if limits else None


def is_spent() -> ColumnElement[bool]:
    """Whether the running job of the statement has used up its budget.

    Its deadline has passed, or its devices and those of its helpers have worked for as long as they may.
    """
    limit_h = Job.spec["budget"]["max_device_hours"].astext.cast(Float)
    too_long = case((limit_h.is_not(None), _device_seconds() >= limit_h * _S_PER_H), else_=False)
    return or_(func.coalesce(Job.deadline_at <= func.now(), False), too_long)


def _device_seconds() -> ColumnElement[float]:
    """Of the job and of the helpers of all its attempts, up to now."""
    one, attempt = aliased(Job), aliased(Attempt)
    running_s = func.extract("epoch", func.now() - attempt.started_at)
    used = (
        select(func.sum(one.device_seconds + func.coalesce(running_s, 0.0)))
        .select_from(one)
        .outerjoin(
            attempt,
            and_(attempt.job_id == one.id, attempt.fence == one.fence, one.state == JobState.RUNNING),
        )
        .where(or_(one.id == Job.id, one.parent_id == Job.id), or_(one.id == Job.id, one.kind == JobKind.SCORING))
        .correlate(Job)
    )
    return used.scalar_subquery()
