"""A search that takes a trained supernet over: what it must not say otherwise."""

from __future__ import annotations

from typing import Any

from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.spaces import constraints_of, resolve_space
from service.jobs.spec import DatasetRef, SearchSpec, SupernetSpec, TeacherSpec
from service.supernets.info import SupernetInfo


def take_over(spec: SearchSpec, warm: SupernetInfo, dataset: DatasetInfo) -> tuple[Space, TeacherSpec, SupernetSpec]:
    """Space, teacher and supernet of the job that trained the weights.

    Raises:
        ValidationFailed: the body describes another space or another training than the supernet has had, or splits the
            same dataset otherwise, so that networks would be measured on images that they were trained on.
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
    items += _split_items(spec, warm, dataset)
    if items:
        raise ValidationFailed.of(items)
    return warm.space, teacher, supernet


def _split_items(spec: SearchSpec, warm: SupernetInfo, dataset: DatasetInfo) -> list[ErrorItem]:
    if dataset.digest != warm.dataset:
        return []
    trained = DatasetRef.model_validate(warm.spec["dataset"])
    detail = f"supernet {warm.reference} was trained on images that this split measures on"
    official = {"val_fraction": dataset.val_images, "holdout_fraction": dataset.test_images}
    return [
        ErrorItem(f"/dataset/{field}", "split_mismatch", detail, [allowed])
        for field, images in official.items()
        if not images and getattr(spec.dataset, field) != (allowed := getattr(trained, field))
    ]


def check_window(spec: SearchSpec, warm: SupernetInfo) -> list[ErrorItem]:
    """Warn when weights that learnt within a window are searched within another."""
    trained = warm.trained_for.get("constraints")
    limits = [constraint.to_json() for constraint in constraints_of(spec.constraints)]
    if trained is None or sorted(limits, key=_metric) == sorted(trained, key=_metric):
        return []
    detail = (
        f"supernet {warm.reference} was trained as networks within its own limits alone; "
        "others may score worse than they would after a training of their own"
    )
    return [ErrorItem("/constraints", "trained_for_other_limits", detail, trained)]


def _metric(limit: dict[str, Any]) -> str:
    return str(limit["metric"])
