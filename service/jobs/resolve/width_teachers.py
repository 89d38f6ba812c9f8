"""The teacher of a slimmable network: logits that are a second label, or features that are matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from models.architecture import Architecture
from service.errors import ErrorItem, ValidationFailed, shortened
from service.jobs.resolve.teachers import on_students_grid, teacher_notices
from service.jobs.resolve.width_training import fill_teacher_training
from service.jobs.spec import SlimmableSpec, WidthTeacherSpec
from service.teachers.info import TeacherInfo

Kind = Literal["logits", "features"]


def resolve_width_teacher(
    spec: SlimmableSpec,
    registered: TeacherInfo | None,
    largest: Architecture,
    classes: Sequence[str],
    train_images: int,
    warnings: list[ErrorItem],
) -> WidthTeacherSpec | None:
    """Fill what is learnt of the teacher, and the recipe of one that is trained here.

    Args:
        spec: the body.
        registered: the teacher that ``teacher.id`` names.
        largest: the whole network.
        classes: of the dataset, in order.
        train_images: images that are trained on.
        warnings: gets its licence, and what has to be resampled.

    Raises:
        ValidationFailed: a kind that this teacher or this method cannot have.
    """
    asked = spec.teacher
    if asked is None:
        return None
    kind = asked.kind or _usual(spec, registered)
    _check_kind(spec, kind, registered, classes)
    update: dict[str, Any] = {"kind": kind}
    if asked.train is not None:
        update["train"] = fill_teacher_training(asked.train, largest, train_images, warnings)
    if registered is not None:
        if kind == "features":
            on_students_grid(registered.network, largest)
        warnings += teacher_notices(registered.name, registered.network, registered.info.get("licence"), largest)
    return asked.model_copy(update=update)


def _usual(spec: SlimmableSpec, registered: TeacherInfo | None) -> Kind:
    headless = registered is not None and not registered.network.num_classes
    without_labels = spec.training.cross_entropy is False and spec.teacher is not None and spec.teacher.train is None
    return "features" if headless or without_labels else "logits"


def _check_kind(spec: SlimmableSpec, kind: Kind, registered: TeacherInfo | None, classes: Sequence[str]) -> None:
    assert spec.teacher is not None, "the caller has looked"
    if kind == "features":
        if spec.method != "scala":
            detail = f"method {spec.method} learns classes from its teacher, and this one gives features"
            allowed = "a teacher with a head: timm, train, or kind logits"
            raise ValidationFailed.of([ErrorItem("/teacher", "features_not_with_method", detail, allowed)])
        if spec.teacher.train is not None:
            detail = "a teacher that is trained here learns the labels, and gives logits"
            raise ValidationFailed.of([ErrorItem("/teacher/kind", "not_with_train", detail, ["logits"])])
        return
    if registered is None:
        return
    found, named = registered.network.num_classes, registered.info.get("classes")
    if found == len(classes) and (not named or list(named) == list(classes)):
        return
    head = f"has a head for {found} other classes than the dataset's {len(classes)}"
    if not found:
        head = "is stored without a head"
    detail = f"teacher {shortened(registered.name)!r} {head}"
    raise ValidationFailed.of([ErrorItem("/teacher/kind", "no_logits", detail, ["features"])])
