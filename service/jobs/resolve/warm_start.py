"""A search that takes a trained supernet over: what it must not say otherwise."""

from __future__ import annotations

from typing import Any, TypeVar

from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import WHOLE_IMAGE
from service.jobs.resolve.spaces import resolve_space, window_of
from service.jobs.resolve.supernet import resolve_objective
from service.jobs.spec import DatasetRef, JobSpec, MaskedSpec, SearchSpec, Spec, SupernetSpec, TeacherSpec
from service.supernets.info import SupernetInfo

_Masked = TypeVar("_Masked", bound=MaskedSpec)


def take_over(spec: SearchSpec, warm: SupernetInfo, dataset: DatasetInfo) -> tuple[Space, TeacherSpec, SupernetSpec]:
    """Space, teacher and supernet of the job that trained the weights.

    Raises:
        ValidationFailed: another method has trained it, the body describes another space or another training than the
            supernet has had, or it splits the same dataset otherwise, so that networks would be measured on images
            that they were trained on.
    """
    if warm.method != spec.method:
        detail = f"supernet {warm.reference} was trained by method {warm.method}, not {spec.method}"
        raise ValidationFailed.of([ErrorItem("/warm_start/supernet", "other_method", detail, [warm.method])])
    teacher = _as_trained(TeacherSpec.model_validate(warm.spec["teacher"]))
    supernet = _supernet_as_trained(SupernetSpec.model_validate(warm.spec["supernet"]))
    given = spec.model_fields_set
    items = []
    space = Space.from_json(warm.space)
    if "space" in given and resolve_space(spec.space, dataset).digest() != space.digest():
        detail = f"supernet {warm.reference} was trained for the space {space.name!r}; leave `space` out"
        items.append(ErrorItem("/space", "space_mismatch", detail, space.to_json()))
    parts: list[tuple[str, Spec, Spec]] = [
        ("teacher", _as_trained(spec.teacher), teacher),
        ("supernet", _supernet_as_trained(spec.supernet), supernet),
    ]
    for part, asked, trained in parts:
        if part in given and asked != trained:
            detail = f"supernet {warm.reference} is trained already; leave `{part}` out"
            items.append(ErrorItem(f"/{part}", "fixed_by_warm_start", detail, trained.model_dump(mode="json")))
    if spec.widths is not None:
        detail = f"supernet {warm.reference} is trained already; leave `widths` out"
        items.append(ErrorItem("/widths", "fixed_by_warm_start", detail, None))
    items += split_items(spec, warm, dataset)
    if items:
        raise ValidationFailed.of(items)
    return space, teacher, supernet


def _as_trained(teacher: TeacherSpec) -> TeacherSpec:
    """A filled teacher of an earlier version with what has become an option since, as that version did it."""
    if teacher.pretrain is None:
        return teacher
    return teacher.model_copy(update={"pretrain": _uncropped(teacher.pretrain)})


def _supernet_as_trained(supernet: SupernetSpec) -> SupernetSpec:
    """The same of a supernet; such have never been slimmable."""
    return _uncropped(resolve_objective(supernet, slimmable=False))


def _uncropped(part: _Masked) -> _Masked:
    scale, flip = part.crop_scale, part.horizontal_flip
    return part.model_copy(update={"crop_scale": scale or WHOLE_IMAGE, "horizontal_flip": bool(flip)})


def split_items(spec: JobSpec, warm: SupernetInfo, dataset: DatasetInfo) -> list[ErrorItem]:
    """Refuse another split of the images that a supernet was trained on."""
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
    limits = window_of(spec.constraints)
    if trained is None or sorted(limits, key=_metric) == sorted(trained, key=_metric):
        return []
    detail = (
        f"supernet {warm.reference} was trained as networks within its own limits alone; "
        "others may score worse than they would after a training of their own"
    )
    return [ErrorItem("/constraints", "trained_for_other_limits", detail, trained)]


def _metric(limit: dict[str, Any]) -> str:
    return str(limit["metric"])
