"""The space and the limits of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.architecture import FieldProblem
from search import presets
from search.constraints import Constraint, ConstraintProblem, ReachableRange, check_constraints
from search.errors import SpaceError
from search.metrics import Metric
from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ConstraintUnsatisfiable, ErrorItem, ValidationFailed, shortened
from service.jobs.spec import ConstraintSpec, SearchSpec, SpaceOverrides, SpaceSpec


def resolve_space(asked: SpaceSpec, dataset: DatasetInfo) -> Space:
    """The space that was asked for; what is open follows from the images.

    Raises:
        ValidationFailed: no such space.
    """
    overrides = asked.overrides.model_dump(exclude_none=True) if asked.overrides else {}
    preset = asked.preset
    if preset is None:
        preset = presets.default_preset(asked.img_size or dataset.min_side).value
    img_size = asked.img_size or _image_side(preset, dataset.min_side)
    try:
        return presets.resolve(
            preset, img_size=img_size, in_chans=asked.in_chans or dataset.channels, overrides=overrides
        )
    except SpaceError as error:
        raise ValidationFailed.of(field_errors("/space", error.problems)) from error


def _image_side(preset: str, min_side: int) -> int | None:
    """The input side when the user names none: the preset's own, or the images' for spaces with a fixed grid."""
    known = next((p for p in presets.PRESETS.values() if p.name == preset), None)
    if known is None or known.grid_size is None:
        return None  # an unknown name is refused by presets.resolve
    side = min(min_side, presets.MICRO_MAX_IMG_SIZE)
    return max(known.grid_size * 2, side - side % known.grid_size)


def space_spec(space: Space) -> SpaceSpec:
    """A space as the filled spec names it."""
    return SpaceSpec(
        preset=space.name,
        img_size=space.img_size,
        in_chans=1 if space.in_chans == 1 else 3,
        overrides=SpaceOverrides(
            embed_dim=list(space.embed_dim),
            depth=list(space.depth),
            num_heads=list(space.num_heads),
            mlp_ratio=list(space.mlp_ratio),
            head_dim=space.head_dim,
            patch_size=space.patch_size,
        ),
    )


def check_limits(
    asked: Sequence[ConstraintSpec], space: Space, num_classes: int, reachable: Sequence[ReachableRange]
) -> list[ErrorItem]:
    """Refuse limits that no network meets; the returned warnings name those without effect."""
    problems = check_constraints(space, constraints_of(asked), num_classes)
    errors = [problem for problem in problems if problem.is_error]
    if errors:
        raise ConstraintUnsatisfiable(
            " ".join(f"{problem.detail}." for problem in errors),
            errors=[item for problem in errors for item in _limit_items(problem)],
            extra={"reachable": [reach.to_json() for reach in reachable]},
        )
    return [item for problem in problems for item in _limit_items(problem)]


def _limit_items(problem: ConstraintProblem) -> list[ErrorItem]:
    allowed = [reach.to_json() for reach in problem.reachable]
    return [
        ErrorItem(f"/constraints{pointer}", problem.kind.value, problem.detail, allowed) for pointer in problem.pointers
    ]


def space_of(spec: SearchSpec) -> Space:
    """The space that a filled spec names."""
    asked = spec.space
    overrides = asked.overrides.model_dump(exclude_none=True) if asked.overrides else {}
    assert asked.preset is not None, "resolve_search fills preset and channels"
    assert asked.in_chans is not None, "resolve_search fills preset and channels"
    return presets.resolve(asked.preset, img_size=asked.img_size, in_chans=asked.in_chans, overrides=overrides)


def constraints_of(asked: Sequence[ConstraintSpec]) -> tuple[Constraint, ...]:
    """The limits of a spec as the search reads them."""
    return tuple(Constraint(metric=Metric(c.metric.value), min=c.min, max=c.max) for c in asked)


def field_errors(base: str, problems: Iterable[FieldProblem]) -> list[ErrorItem]:
    """Problems of a record as error items below ``base``."""
    return [
        ErrorItem(
            f"{base}{p.pointer}",
            "invalid_value",
            f"found {shortened(repr(p.found))}, allowed is {p.allowed}",
            p.allowed,
        )
        for p in problems
    ]
