"""The body of ``POST /search``: what a search is, in full.

Only ``method`` and ``dataset`` are required.  ``None`` means "choose for me": ``service.jobs.resolve`` fills every
such field from the dataset and the space, and the filled spec is what the job stores, echoes and computes from.  A
filled spec is itself a valid body, so any job can be repeated from what it shows.
"""

from typing import TypeAlias

from service.jobs.spec.base import OptimSpec, Spec
from service.jobs.spec.common import (
    MAX_SEED,
    BudgetSpec,
    JobSpec,
    RecoverySpec,
    ResourcesSpec,
    RetrySpec,
    WarmStartSpec,
)
from service.jobs.spec.data import DatasetRef, ImportSpec
from service.jobs.spec.job import SearchSpec
from service.jobs.spec.latency import AGENT_NAME, AGENT_PREFIX, MAX_AGENT_NAME, DeviceSpec, LatencyBuildSpec
from service.jobs.spec.masked import DecoderSpec, DistillSpec, MaskedSpec, SupernetSpec, WidthsSpec
from service.jobs.spec.recipe import RecipeName, SupervisedSpec
from service.jobs.spec.retrain import ExportSpec, RetrainMode, RetrainSpec
from service.jobs.spec.search import EvaluationSpec, ListedArchitecture, PopulationSpec, SearchPart, ZeroCostSpec
from service.jobs.spec.slimmable import (
    EVERY,
    AfterEpochs,
    InitSpec,
    NetworkSpec,
    SlicingSpec,
    SlimmableSpec,
    SlimmableTrainingSpec,
    WidthExportSpec,
    WidthGridSpec,
    WidthTeacherSpec,
)
from service.jobs.spec.space import (
    WORKER,
    ConstraintMetric,
    ConstraintSpec,
    LatencySpec,
    ObjectiveMetric,
    ObjectiveSpec,
    SpaceFields,
    SpaceOverrides,
    SpaceSpec,
)
from service.jobs.spec.supernets import (
    ExtractRequest,
    ExtractSpec,
    SupernetImportSpec,
    TransferRequest,
    TransferSpec,
)
from service.jobs.spec.teacher import PretrainSpec, TeacherArchitecture, TeacherImportSpec, TeacherSource, TeacherSpec

AnySearchSpec: TypeAlias = SearchSpec | SlimmableSpec
"""The body of a search; `method` says which."""

__all__ = [
    "AGENT_NAME",
    "AGENT_PREFIX",
    "EVERY",
    "MAX_AGENT_NAME",
    "MAX_SEED",
    "WORKER",
    "AfterEpochs",
    "AnySearchSpec",
    "BudgetSpec",
    "ConstraintMetric",
    "ConstraintSpec",
    "DatasetRef",
    "DecoderSpec",
    "DeviceSpec",
    "DistillSpec",
    "EvaluationSpec",
    "ExportSpec",
    "ExtractRequest",
    "ExtractSpec",
    "ImportSpec",
    "InitSpec",
    "JobSpec",
    "LatencyBuildSpec",
    "LatencySpec",
    "ListedArchitecture",
    "MaskedSpec",
    "NetworkSpec",
    "ObjectiveMetric",
    "ObjectiveSpec",
    "OptimSpec",
    "PopulationSpec",
    "PretrainSpec",
    "RecipeName",
    "RecoverySpec",
    "ResourcesSpec",
    "RetrainMode",
    "RetrainSpec",
    "RetrySpec",
    "SearchPart",
    "SearchSpec",
    "SlicingSpec",
    "SlimmableSpec",
    "SlimmableTrainingSpec",
    "SpaceFields",
    "SpaceOverrides",
    "SpaceSpec",
    "Spec",
    "SupernetImportSpec",
    "SupernetSpec",
    "SupervisedSpec",
    "TeacherArchitecture",
    "TeacherImportSpec",
    "TeacherSource",
    "TeacherSpec",
    "TransferRequest",
    "TransferSpec",
    "WarmStartSpec",
    "WidthExportSpec",
    "WidthGridSpec",
    "WidthTeacherSpec",
    "WidthsSpec",
    "ZeroCostSpec",
]
