"""The body of a label-free search of a space (MaskTAS)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.jobs.spec.base import short_form
from service.jobs.spec.common import JobSpec, WarmStartSpec
from service.jobs.spec.masked import SupernetSpec, WidthsSpec
from service.jobs.spec.retrain import ExportSpec, RetrainSpec
from service.jobs.spec.search import SearchPart
from service.jobs.spec.space import SpaceSpec
from service.jobs.spec.teacher import TeacherSpec


class SearchSpec(JobSpec):
    """A search of a space by shared weights that learn without labels."""

    method: Literal["masktas"]
    teacher: Annotated[TeacherSpec, short_form("id", TeacherSpec)] = Field(default_factory=lambda: TeacherSpec())
    space: Annotated[SpaceSpec, short_form("preset", SpaceSpec)] = Field(default_factory=lambda: SpaceSpec())
    warm_start: Annotated[WarmStartSpec, short_form("supernet", WarmStartSpec)] | None = Field(
        None, description="Search a supernet that an earlier job trained; space, teacher and supernet follow from it."
    )
    widths: WidthsSpec | None = Field(None, description="Experimental: a supernet of slimmable networks.")
    supernet: SupernetSpec = Field(default_factory=lambda: SupernetSpec())
    search: SearchPart = Field(default_factory=lambda: SearchPart())
    retrain: RetrainSpec = Field(default_factory=lambda: RetrainSpec())
    export: ExportSpec = Field(default_factory=lambda: ExportSpec())
