"""The frozen teacher."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from models.architecture import MAX_HEADS, Architecture, ArchitectureError, FieldProblem, Pool
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import resolve_masked
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import PretrainSpec, TeacherArchitecture, TeacherSpec
from service.teachers.info import TeacherInfo


class OnImages(Protocol):
    """What looks at square images in square patches: a space, or a network."""

    @property
    def img_size(self) -> int:
        """Side of an image in pixels."""
        ...

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        ...


def resolve_teacher(
    asked: TeacherSpec,
    known: TeacherInfo | None,
    space: Space,
    train_images: int,
    mask_ratio: float | None,
    warnings: list[ErrorItem],
) -> TeacherSpec:
    """Fill where the teacher comes from; one that is pretrained is the default.

    Args:
        asked: by the user.
        known: the teacher that ``asked.id`` names.
        mask_ratio: of the student's training.

    Raises:
        ValidationFailed: one that is to be pretrained cannot be built or trained.
    """
    if asked.timm is not None:
        return asked  # what it is, the trainer finds out
    if asked.id is not None:
        assert known is not None, "whoever names a teacher by its id has looked it up"
        on_students_grid(known.network, space)
        warnings += teacher_notices(known.name, known.network, known.info.get("licence"), space)
        return asked
    pretrain = _resolve_pretrain(asked.pretrain or PretrainSpec(), space.largest(), train_images, mask_ratio, warnings)
    _check_buildable(pretrain, space)
    return TeacherSpec(pretrain=pretrain)


def teacher_notices(
    name: str, network: Architecture, licence: Mapping[str, Any] | None, student: OnImages
) -> list[ErrorItem]:
    """What users of a teacher should know: its terms, and what has to be resampled for it.

    Args:
        name: of the teacher.
        network: the teacher at its own size.
        licence: of its weights, as ``models.foreign.licences.Licence.to_json``.
        student: what learns from it.
    """
    notices = []
    if licence and licence.get("commercial_use") is False:
        detail = f"teacher {name!r} has the licence {licence['name']}: {licence['note']}"
        notices.append(ErrorItem("/teacher", "teacher_licence", detail))
    grid = student.img_size // student.patch_size
    size = grid * network.patch_size
    if (grid, size) != (network.grid_size, student.img_size):
        own, wanted = f"{network.grid_size}x{network.grid_size}", f"{grid}x{grid}"
        detail = (
            f"teacher {name!r} was trained on a grid of {own} patches of {network.patch_size} pixels, the student's "
            f"grid is {wanted} patches of {student.patch_size}: images are resized from {student.img_size} to {size} "
            "pixels for the teacher"
        )
        if network.grid_size != grid:
            detail += f", and its positions are resampled from {own} to {wanted}"
        notices.append(ErrorItem("/teacher", "teacher_resampled", detail))
    return notices


def on_students_grid(network: Architecture, student: OnImages) -> Architecture:
    """The teacher as it looks at the images of a student: as many patches as the student has, each of its own size.

    Raises:
        ValidationFailed: that image would be too large.
    """
    grid = student.img_size // student.patch_size
    try:
        return replace(network, img_size=grid * network.patch_size)
    except ArchitectureError as error:
        detail = (
            f"on the student's grid of {grid}x{grid} patches its patches of {network.patch_size} pixels need images of "
            f"{grid * network.patch_size} pixels ({error}); choose larger patches for the student"
        )
        raise ValidationFailed.of([ErrorItem("/teacher", "teacher_too_fine", detail)]) from error


def adopted_teacher_notices(outputs: Mapping[str, Any], space: Space) -> list[ErrorItem]:
    """The same of the teacher of a supernet that a search takes over, from the outputs of its stage."""
    if outputs.get("licence") is None:  # it was pretrained
        return []
    network = Architecture.from_json(outputs["architecture"])
    return teacher_notices(outputs["name"], network, outputs["licence"], space)


_WIDEST = 1664
"""Of timm's Vision Transformers; which of them a name means, only the trainer can look up."""


def teacher_width(filled: TeacherSpec, known: TeacherInfo | None) -> int:
    """Width of the teacher's tokens, or at least as much."""
    if filled.pretrain is not None and filled.pretrain.architecture is not None:
        return filled.pretrain.architecture.embed_dim
    return known.network.embed_dim if known is not None else _WIDEST


def _resolve_pretrain(
    asked: PretrainSpec, largest: Architecture, train_images: int, mask_ratio: float | None, warnings: list[ErrorItem]
) -> PretrainSpec:
    """A teacher as wide and deep as the largest subnet unless the user says otherwise.

    The student's mask ratio is the teacher's default: the student asks it for features of just such partial images.
    """
    if asked.mask_ratio is None:
        asked = asked.model_copy(update={"mask_ratio": mask_ratio})
    size = asked.architecture or TeacherArchitecture(
        embed_dim=largest.embed_dim,
        depth=largest.depth,
        num_heads=min(max(1, largest.embed_dim // largest.head_dim), MAX_HEADS),
        head_dim=largest.head_dim,
        mlp_ratio=4.0,
    )
    filled = resolve_masked(asked, largest, train_images, "/teacher/pretrain", warnings)
    return filled.model_copy(update={"architecture": size})


def _check_buildable(filled: PretrainSpec, space: Space) -> None:
    """Refuse a filled teacher that cannot be built.

    Raises:
        ValidationFailed: naming the fields of its architecture.
    """
    try:
        teacher_architecture(filled, space)
    except ArchitectureError as error:
        items = _teacher_items(error.problems)
        raise ValidationFailed.of(items) from error


def _teacher_items(problems: Iterable[FieldProblem]) -> list[ErrorItem]:
    # All blocks of a teacher are alike, so what is wrong with a list is wrong with the one number that fills it.
    once = {problem.pointer.split("/")[1]: problem for problem in problems}
    return field_errors(
        "/teacher/pretrain/architecture",
        [FieldProblem(f"/{field}", problem.found, problem.allowed) for field, problem in once.items()],
    )


def teacher_architecture(spec: PretrainSpec, space: Space) -> Architecture:
    """The architecture of a teacher that is pretrained for this space, without a head.

    The pretraining spec must be filled (see :func:`resolve_search`).
    """
    size = spec.architecture
    assert size is not None, "resolve_search fills the teacher's size"
    return Architecture(
        embed_dim=size.embed_dim,
        depth=size.depth,
        num_heads=(size.num_heads,) * size.depth,
        mlp_ratio=(size.mlp_ratio,) * size.depth,
        head_dim=size.head_dim,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=space.in_chans,
        num_classes=0,
        pool=Pool(space.pool),
        norm_eps=space.norm_eps,
    )
