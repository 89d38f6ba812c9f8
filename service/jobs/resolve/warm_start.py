"""A search that takes a trained supernet over: what it must not say otherwise."""

from __future__ import annotations

from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.spaces import resolve_space
from service.jobs.spec import SearchSpec, SupernetSpec, TeacherSpec
from service.supernets.info import SupernetInfo


def take_over(spec: SearchSpec, warm: SupernetInfo, dataset: DatasetInfo) -> tuple[Space, TeacherSpec, SupernetSpec]:
    """Space, teacher and supernet of the job that trained the weights.

    Raises:
        ValidationFailed: the body describes another space or another training than the supernet has had.
    """
    teacher = TeacherSpec.model_validate(warm.spec["teacher"])
    supernet = SupernetSpec.model_validate(warm.spec["supernet"])
    given = spec.model_fields_set
    items = []
    if "space" in given and resolve_space(spec.space, dataset).digest() != warm.space.digest():
        detail = f"supernet {warm.reference} was trained for the space {warm.space.name!r}; leave `space` out"
        items.append(ErrorItem("/space", "space_mismatch", detail, warm.space.to_json()))
    for part, asked, trained in (("teacher", spec.teacher, teacher), ("supernet", spec.supernet, supernet)):
        if part in given and asked != trained:
            detail = f"supernet {warm.reference} is trained already; leave `{part}` out"
            items.append(ErrorItem(f"/{part}", "fixed_by_warm_start", detail, trained.model_dump(mode="json")))
    if spec.widths is not None:
        detail = f"supernet {warm.reference} is trained already; leave `widths` out"
        items.append(ErrorItem("/widths", "fixed_by_warm_start", detail, None))
    if items:
        raise ValidationFailed.of(items)
    return warm.space, teacher, supernet
