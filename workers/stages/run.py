"""Runs a job of any kind in the trainer: its stages in order, from where the last promoted checkpoint left off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, assert_never

from search.asktell import StateError
from service.db.models import JobKind
from service.errors import BudgetExhausted, CheckpointIncompatible
from workers.channel import Channel
from workers.protocol import Result, Start
from workers.stages.context import BudgetReached, Json
from workers.stages.data import DataStage
from workers.stages.dataset_import import import_dataset_job
from workers.stages.delivery_context import DeliveryContext
from workers.stages.estimate import Estimator, planned_work
from workers.stages.export import ExportStage
from workers.stages.finalists import search_finalists
from workers.stages.latency_table import latency_table_job
from workers.stages.report import ReportStage, judge_scores
from workers.stages.result import search_result
from workers.stages.retrain import RetrainStage
from workers.stages.search import SearchStage
from workers.stages.search_context import SearchContext
from workers.stages.shards.helper import scoring_job
from workers.stages.slimmable import estimate as width_estimate
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.extract import extract_job
from workers.stages.slimmable.importing import import_supernet_job
from workers.stages.slimmable.result import width_result
from workers.stages.slimmable.search import WidthStage, width_finalists
from workers.stages.slimmable.separate import SeparateStage
from workers.stages.slimmable.supernet import SlimmableStage
from workers.stages.slimmable.teacher import WidthTeacherStage
from workers.stages.slimmable.transfer import transfer_job
from workers.stages.supernet import SupernetStage
from workers.stages.teacher import TeacherStage
from workers.stages.teacher_import import import_teacher_job
from workers.stages.worker_latency import candidates_limit, measure_exports

Ctx = TypeVar("Ctx", bound=DeliveryContext)
Ctx_contra = TypeVar("Ctx_contra", bound=DeliveryContext, contravariant=True)


class Stage(Protocol[Ctx_contra]):
    """A resumable part of a job."""

    @property
    def name(self) -> str:
        """As users see it."""
        ...

    def run(self, ctx: Ctx_contra) -> Json:
        """Do the stage's work, from ``ctx.state`` on, and return its outputs."""
        ...


def search_stages() -> tuple[Stage[SearchContext], ...]:
    """The stages of a search in order."""
    return (
        DataStage(),
        TeacherStage(),
        SupernetStage(),
        SearchStage(),
        RetrainStage(),
        ExportStage(search_finalists, measure_exports),
        ReportStage(search_finalists, judge_scores),
    )


def width_stages(ctx: SlimmableContext) -> tuple[Stage[SlimmableContext], ...]:
    """The stages of a search over widths in order."""
    return (
        DataStage(),
        WidthTeacherStage(),
        SlimmableStage() if ctx.is_shared else SeparateStage(),
        WidthStage(),
        ExportStage(width_finalists, measure_exports),
        ReportStage(width_finalists),
    )


def run_job(start: Start, channel: Channel) -> Result:
    """Run one attempt of a job.

    Args:
        start: the supervisor's order.
        channel: for reports, and for the wish to stop.

    Raises:
        StopRequested: after a checkpoint, where the stage has something to save.
        ServiceError: the job cannot succeed; see ``service.errors``.
    """
    match JobKind(start.kind):
        case JobKind.SEARCH:
            return _search(start, channel)
        case JobKind.DATASET_IMPORT:
            return import_dataset_job(start, channel)
        case JobKind.TEACHER_IMPORT:
            return import_teacher_job(start, channel)
        case JobKind.SUPERNET_IMPORT:
            return import_supernet_job(start, channel)
        case JobKind.EXTRACT:
            return extract_job(start, channel)
        case JobKind.TRANSFER:
            return transfer_job(start, channel)
        case JobKind.LATENCY_TABLE:
            return latency_table_job(start, channel)
        case JobKind.SCORING:
            return scoring_job(start, channel)
        case other:
            assert_never(other)


def _search(start: Start, channel: Channel) -> Result:
    if start.spec["method"] == "masktas":
        ctx = SearchContext(start, channel)
        ctx.latency = candidates_limit(ctx)
        _run_stages(ctx, search_stages(), planned_work)
        return search_result(ctx)
    of_widths = SlimmableContext(start, channel)
    of_widths.latency = candidates_limit(of_widths)
    _run_stages(of_widths, width_stages(of_widths), width_estimate.planned_work)
    return width_result(of_widths)


def _run_stages(ctx: Ctx, stages: Sequence[Stage[Ctx]], work: Callable[[Ctx], dict[str, float]]) -> None:
    for stage in stages:
        if stage.name in ctx.outputs:
            continue
        if DataStage.name in ctx.outputs and ctx.estimator is None:
            ctx.estimator = Estimator(work(ctx))
        ctx.enter(stage.name)
        try:
            outputs = ctx.take_over() if stage.name in ctx.start.adopted else stage.run(ctx)
        except StateError as error:
            raise CheckpointIncompatible.of(stage.name, found=f"another form ({error})", allowed="its own") from error
        except BudgetReached:
            raise BudgetExhausted(
                f"The job's time was up in stage {stage.name}, before it had anything to show; "
                "start a search with a larger budget.max_wall_seconds or budget.max_device_hours, or with fewer epochs."
            ) from None
        ctx.complete(outputs)
