"""The table of a device, measured or brought along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from search.errors import SpaceError
from search.latency import (
    MAX_BLOCKS,
    MAX_WIDTHS,
    LatencyError,
    LatencySetting,
    LatencyTable,
    Precision,
    Runtime,
)
from search.latency_design import Design, default_networks, design, least_networks
from search.latency_fit import fit_table
from search.presets import MICRO_MAX_IMG_SIZE
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.spaces import field_errors, make_space, space_spec
from service.jobs.spec import LatencyBuildSpec

_FEW_CLASSES, _MANY_CLASSES = 10, 1000


def read_table(document: dict[str, Any], pointer: str) -> LatencyTable:
    """A table that a user brings.

    Raises:
        ValidationFailed: each key, list or row at fault, below ``pointer``.
    """
    try:
        return LatencyTable.from_json(document)
    except LatencyError as error:
        raise ValidationFailed.of(field_errors(pointer, error.problems)) from error


def resolve_build(asked: LatencyBuildSpec) -> LatencyBuildSpec:
    """Fill the open fields of a measurement.

    Raises:
        ValidationFailed: no such space, one with more parts than a table holds, or too few networks for its parts.
    """
    try:
        space = make_space(asked.space)
    except SpaceError as error:
        raise ValidationFailed.of(field_errors("/build/space", error.problems)) from error
    _check_size(space)
    least = least_networks(space)
    if asked.networks is not None and asked.networks < least:
        detail = f"found {asked.networks}, but the parts of space {space.name!r} follow from {least} networks at least"
        raise ValidationFailed.of([ErrorItem("/build/networks", "too_few_networks", detail, {"min": least})])
    few = space.img_size <= MICRO_MAX_IMG_SIZE
    classes = asked.num_classes if asked.num_classes is not None else (_FEW_CLASSES if few else _MANY_CLASSES)
    return asked.model_copy(
        update={
            "space": space_spec(asked.space, space),
            "num_classes": classes,
            "networks": asked.networks or default_networks(space),
        }
    )


def _check_size(space: Space) -> None:
    blocks = len(space.embed_dim) * len(space.num_heads) * len(space.mlp_ratio)
    if blocks > MAX_BLOCKS or len(space.embed_dim) > MAX_WIDTHS or least_networks(space) > 1000:
        detail = f"space {space.name!r} has {len(space.embed_dim)} widths and {blocks} kinds of blocks"
        allowed = f"at most {MAX_WIDTHS} widths, {MAX_BLOCKS} kinds of blocks and 1000 networks to measure"
        raise ValidationFailed.of(
            [ErrorItem("/build/space", "too_large", f"{detail}, a table holds {allowed}", allowed)]
        )


def design_of(build: LatencyBuildSpec) -> Design:
    """The networks that a filled build measures: a function of the build, so that each attempt measures the same."""
    assert build.num_classes is not None, "filled"
    assert build.networks is not None, "filled"
    rng = np.random.Generator(np.random.PCG64(build.seed))
    return design(make_space(build.space), build.num_classes, build.networks, build.held_out, rng)


def table_of(
    build: LatencyBuildSpec, chosen: Design, measured_ns: Sequence[int], *, device: str, threads: int
) -> LatencyTable:
    """The table that explains what was measured.

    Args:
        build: filled.
        chosen: its networks.
        measured_ns: of each of them, in order.
        device: label of what they were measured on.
        threads: of one operation.

    Raises:
        LatencyError: times that are none, or a label without bounds.
    """
    space = make_space(build.space)
    assert build.num_classes is not None, "filled"
    setting = LatencySetting(
        device=device,
        runtime=Runtime(build.runtime),
        precision=Precision(build.precision),
        batch_size=build.batch_size,
        threads=threads,
        percentile=build.percentile,
        warmup_runs=build.warmup_runs,
        runs=build.runs,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=space.in_chans,
        head_dim=space.head_dim,
        num_classes=build.num_classes,
        rel_pos=space.rel_pos,
    )
    taken = list(zip(chosen.networks, measured_ns, strict=True))
    fitted = len(chosen.fitted)
    return fit_table(setting, taken[:fitted], held_out=taken[fitted:])
