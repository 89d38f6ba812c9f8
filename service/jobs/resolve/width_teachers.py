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
    kind = asked.kind or _usual(spec, registered, classes)
    _check_kind(spec, kind, registered, classes)
    update: dict[str, Any] = {"kind": kind}
    if asked.train is not None:
        update["train"] = fill_teacher_training(asked.train, largest, train_images, warnings)
    if registered is not None:
        if kind == "features":
            on_students_grid(registered.network, largest)
        warnings += teacher_notices(registered.name, registered.network, registered.info.get("licence"), largest)
    return asked.model_copy(update=update)


def _usual(spec: SlimmableSpec, registered: TeacherInfo | None, classes: Sequence[str]) -> Kind:
    useless_head = registered is not None and not _tells_apart(registered, classes)
    without_labels = spec.training.cross_entropy is False and spec.teacher is not None and spec.teacher.train is None
    # Only scala can do without logits; others are told that these are of no use.
    return "features" if spec.method == "scala" and (useless_head or without_labels) else "logits"


def _tells_apart(registered: TeacherInfo, classes: Sequence[str]) -> bool:
    """Whether the teacher has a head for these classes; the names of its own are not always known."""
    named = registered.info.get("classes")
    return registered.network.num_classes == len(classes) and (not named or list(named) == list(classes))


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
    if registered is None or _tells_apart(registered, classes):
        return
    found = registered.network.num_classes
    head = f"has a head for {found} other classes than the dataset's {len(classes)}" if found else "has no head"
    detail = f"teacher {shortened(registered.name)!r} {head}"
    instead: Any = ["features"] if spec.method == "scala" else "a teacher with a head for the dataset's classes"
    raise ValidationFailed.of([ErrorItem("/teacher/kind", "no_logits", detail, instead)])
