"""A whole search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from models.architecture import Genotype
from search.constraints import ReachableRange, feasible_set, reachable_ranges
from search.latency import LatencyTable
from search.sampling import FeasibleSet
from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem
from service.jobs.resolve.algorithm import resolve_algorithm
from service.jobs.resolve.evaluation import resolve_evaluation
from service.jobs.resolve.latency import check_table, resolve_latency
from service.jobs.resolve.masked import resolve_masked
from service.jobs.resolve.retrain import resolve_retrain, retrain_mode
from service.jobs.resolve.spaces import check_limits, constraints_of, resolve_space, space_spec
from service.jobs.resolve.splits import train_images_of, val_images_of
from service.jobs.resolve.supernet import check_objective, resolve_objective
from service.jobs.resolve.teachers import adopted_teacher_notices, resolve_teacher, teacher_width
from service.jobs.resolve.warm_start import check_window, take_over
from service.jobs.resolve.widths import widened
from service.jobs.spec import SearchSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec without open fields, the space it names, and what the user should know."""

    spec: SearchSpec
    space: Space
    num_classes: int  # of the deployed networks; 0 when nothing is retrained
    table: LatencyTable | None  # of the device whose latency counts
    reachable: tuple[ReachableRange, ...]  # of every metric, for networks of this space
    warnings: tuple[ErrorItem, ...]

    def feasible(self) -> FeasibleSet:
        """The members of the space within the limits that are decided before the search."""
        return feasible_set(self.space, constraints_of(self.spec.constraints), self.num_classes, self.table)


def resolve_search(
    spec: SearchSpec,
    dataset: DatasetInfo,
    warm: SupernetInfo | None = None,
    registered: TeacherInfo | None = None,
    tables: Mapping[str, LatencyTable] = MappingProxyType({}),
    population: Sequence[Genotype] = (),
) -> Resolved:
    """Fill every open field of a search.

    Args:
        spec: as it was asked for.
        dataset: that it names.
        warm: the supernet of its ``warm_start``.
        registered: the teacher of its ``teacher.id``.
        tables: of the devices that it names by id.
        population: candidates of the job that its ``search.population_from`` names, the best first.

    Raises:
        ValidationFailed: fields that contradict the dataset, the space or each other.
        ConstraintUnsatisfiable: limits that no network of the space meets; carries the reachable ranges.
    """
    mode = retrain_mode(spec, dataset)
    warnings: list[ErrorItem] = []
    spec, table = resolve_latency(spec, tables)
    train_images = train_images_of(spec.dataset, dataset)
    if warm is None:
        space = resolve_space(spec.space, dataset)
        if spec.widths is not None:
            space = widened(space, spec.widths, warnings)
        supernet = resolve_masked(spec.supernet, space.largest(), train_images, "/supernet", warnings)
        supernet = resolve_objective(supernet, slimmable=spec.widths is not None)
        teacher = resolve_teacher(spec.teacher, registered, space, train_images, supernet.mask_ratio, warnings)
        width = teacher_width(teacher, registered)
        check_objective(supernet, space, teacher.pretrain, spec)
    else:
        space, teacher, supernet = take_over(spec, warm, dataset)
        warnings += adopted_teacher_notices(warm.outputs["teacher"], space)
        width = warm.outputs["teacher"]["architecture"]["embed_dim"]
        warnings += check_window(spec, warm)
    num_classes = len(dataset.classes) if mode != "none" else 0
    retrain = resolve_retrain(spec.retrain, mode, space.largest(), train_images, warnings)
    val_images = val_images_of(spec.dataset, dataset)
    search = resolve_evaluation(spec.search, supernet, space.largest(), width, val_images, warnings)
    if table is not None:
        warnings += check_table(spec, table, space, num_classes)
    reachable = reachable_ranges(space, num_classes, table)
    warnings += check_limits(spec.constraints, space, num_classes, reachable, table)
    limits = constraints_of(spec.constraints)
    search = resolve_algorithm(search, space, limits, num_classes, table, population, warnings)
    filled = spec.model_copy(
        update={
            "name": spec.name or f"{spec.method} on {dataset.name}",
            "dataset": spec.dataset.model_copy(update={"id": dataset.reference}),
            "teacher": teacher,
            "space": space_spec(spec.space, space),
            "supernet": supernet,
            "search": search,
            "retrain": retrain,
        }
    )
    # model_copy does not validate: read the result back as any client would, so that a stored spec is a valid body.
    return Resolved(
        spec=SearchSpec.model_validate(filled.model_dump(mode="json")),
        space=space,
        num_classes=num_classes,
        table=table,
        reachable=reachable,
        warnings=tuple(warnings),
    )
