"""The frozen teacher."""

from __future__ import annotations

from collections.abc import Iterable

from models.architecture import Architecture, ArchitectureError, FieldProblem, Pool
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import resolve_masked
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import PretrainSpec, TeacherArchitecture


def resolve_pretrain(
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
        num_heads=max(1, largest.embed_dim // largest.head_dim),
        head_dim=largest.head_dim,
        mlp_ratio=4.0,
    )
    filled = resolve_masked(asked, largest, train_images, "/teacher/pretrain", warnings)
    return filled.model_copy(update={"architecture": size})


def check_teacher(filled: PretrainSpec, space: Space) -> None:
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
