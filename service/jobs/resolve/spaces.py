"""The space and the limits of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from models.architecture import FieldProblem
from search import presets
from search.constraints import Constraint, ConstraintProblem, ReachableRange, check_constraints
from search.errors import SpaceError
from search.latency import LatencyTable
from search.metrics import AFFINE_METRICS, Metric
from search.profiles import TooManyProfiles
from search.space import AXES, Space
from service.datasets.info import DatasetInfo
from service.errors import ConstraintUnsatisfiable, ErrorItem, ValidationFailed, shortened
from service.jobs.spec import WORKER, ConstraintSpec, SearchSpec, SpaceOverrides, SpaceSpec

OWN_NAME = "custom"
"""Of a space of the user's own that has no name."""

_OWN = (*AXES, "img_size", "patch_size")
"""What such a space must say: nothing of it has a default that would suit other images."""


def resolve_space(asked: SpaceSpec, dataset: DatasetInfo) -> Space:
    """The space that was asked for; what is open follows from the images.

    Raises:
        ValidationFailed: no such space.
    """
    try:
        return make_space(asked, channels=dataset.channels, min_side=dataset.min_side)
    except SpaceError as error:
        raise ValidationFailed.of(field_errors("/space", error.problems)) from error


def make_space(asked: SpaceSpec, *, channels: int = 3, min_side: int | None = None) -> Space:
    """The space that was asked for.

    Args:
        asked: a preset or a space of the user's own.
        channels: of the images, unless the spec says otherwise.
        min_side: side of the smallest image in pixels; None when no images are known.

    Raises:
        SpaceError: pointers are relative to the spec.
    """
    in_chans = asked.in_chans or channels
    if asked.own:
        return _own_space(asked, in_chans)
    preset, img_size = asked.preset, asked.img_size
    if min_side is not None:
        preset = preset or presets.default_preset(img_size or min_side).value
        img_size = img_size or _image_side(preset, min_side)
    overrides = asked.overrides.model_dump(exclude_none=True) if asked.overrides else {}
    return presets.resolve(preset, img_size=img_size, in_chans=in_chans, overrides=overrides)


def _own_space(asked: SpaceSpec, in_chans: int) -> Space:
    problems: list[FieldProblem] = []
    if asked.preset is not None:
        allowed = "overrides of the preset, or no preset"
        problems += [FieldProblem(f"/{name}", getattr(asked, name), allowed) for name in asked.own]
    elif asked.overrides is not None:
        problems.append(FieldProblem("/overrides", "overrides", "none beside lists of your own, or a preset"))
    else:
        problems += [
            FieldProblem(f"/{name}", None, f"required: a space of your own needs {', '.join(_OWN)}")
            for name in _OWN
            if getattr(asked, name) is None
        ]
    if problems:
        raise SpaceError(problems)
    given = asked.model_dump(exclude={"preset", "overrides"}, exclude_none=True)
    return Space.from_json({"name": OWN_NAME, **given, "in_chans": in_chans})


def _image_side(preset: str, min_side: int) -> int | None:
    """The input side when the user names none: the preset's own, or the images' for spaces with a fixed grid."""
    known = next((p for p in presets.PRESETS.values() if p.name == preset), None)
    if known is None or known.grid_size is None:
        return None  # an unknown name is refused by presets.resolve
    side = min(min_side, presets.MICRO_MAX_IMG_SIZE)
    return max(known.grid_size * 2, side - side % known.grid_size)


def space_spec(asked: SpaceSpec, space: Space) -> SpaceSpec:
    """A space as the filled spec names it: spelt out, in the form in which it was asked for.

    A space that was taken over from another job has the form that its name allows.
    """
    if asked.own or space.name not in tuple(presets.PresetName):
        return SpaceSpec.model_validate(space.to_json())
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
            pool=space.pool.value,
            norm_eps=space.norm_eps,
            rel_pos=space.rel_pos,
        ),
    )


def check_limits(
    asked: Sequence[ConstraintSpec],
    space: Space,
    num_classes: int,
    reachable: Sequence[ReachableRange],
    table: LatencyTable | None = None,
) -> list[ErrorItem]:
    """Refuse limits that no network meets; the returned warnings name those without effect.

    Raises:
        ConstraintUnsatisfiable: carries the reachable ranges.
        ValidationFailed: limits on peak memory or latency that could not be decided exactly in this space.
    """
    decided = [i for i, limit in enumerate(asked) if limit.device != WORKER]
    try:
        problems = check_constraints(space, constraints_of(asked), num_classes, table)
    except TooManyProfiles as error:
        raise ValidationFailed.of(
            [
                ErrorItem(f"/constraints/{i}/metric", "space_too_rich", f"{p.found} of {p.pointer[1:]}: {p.allowed}")
                for i in decided
                if Metric(asked[i].metric.value) not in AFFINE_METRICS
                for p in error.problems
            ]
        ) from error
    return refuse_limits([_of_body(problem, decided) for problem in problems], reachable)


def refuse_limits(problems: Sequence[ConstraintProblem], reachable: Sequence[ReachableRange]) -> list[ErrorItem]:
    """Refuse limits that cannot be met; the returned warnings name those without effect.

    Raises:
        ConstraintUnsatisfiable: carries the reachable ranges.
    """
    errors = [problem for problem in problems if problem.is_error]
    if errors:
        raise ConstraintUnsatisfiable(
            " ".join(f"{problem.detail}." for problem in errors),
            errors=[item for problem in errors for item in _limit_items(problem)],
            extra={"reachable": [reach.to_json() for reach in reachable]},
        )
    return [item for problem in problems for item in _limit_items(problem)]


def _of_body(problem: ConstraintProblem, decided: Sequence[int]) -> ConstraintProblem:
    """A problem with pointers into all limits of the body, which has others beside those that are decided."""
    moved = []
    for pointer in problem.pointers:
        _, index, *side = pointer.split("/")
        moved.append("/".join(["", str(decided[int(index)]), *side]))
    return replace(problem, pointers=tuple(moved))


def _limit_items(problem: ConstraintProblem) -> list[ErrorItem]:
    allowed = [reach.to_json() for reach in problem.reachable]
    return [
        ErrorItem(f"/constraints{pointer}", problem.kind.value, problem.detail, allowed) for pointer in problem.pointers
    ]


def space_of(spec: SearchSpec) -> Space:
    """The space that a filled spec names."""
    return make_space(spec.space)


def constraints_of(asked: Sequence[ConstraintSpec]) -> tuple[Constraint, ...]:
    """The limits of a spec as the search reads them; without one that candidates are measured for on the worker."""
    return tuple(Constraint(metric=Metric(c.metric.value), min=c.min, max=c.max) for c in asked if c.device != WORKER)


def window_of(asked: Sequence[ConstraintSpec]) -> list[dict[str, Any]]:
    """The limits of a filled spec that bound which networks are trained; one on latency tells whose latency it is."""
    decided = [limit for limit in asked if limit.device != WORKER]
    return [
        {**limit.to_json(), **({} if spec.table_digest is None else {"table_digest": spec.table_digest})}
        for limit, spec in zip(constraints_of(decided), decided, strict=True)
    ]


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
