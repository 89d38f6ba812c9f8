"""Limits on latency, and latency as an objective: whose table counts, and what it can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from search.latency import LatencyError, LatencySetting, LatencyTable, Runtime
from search.space import Space
from service.errors import ErrorItem, ValidationFailed, shortened
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import (
    WORKER,
    ConstraintMetric,
    ConstraintSpec,
    JobSpec,
    LatencySpec,
    ObjectiveMetric,
    ObjectiveSpec,
)

_LARGE_ERROR = 0.1
"""Mean error of held-out networks, as a share, beyond which a user is warned; tables of quiet machines reach 0.02."""

_SpecT = TypeVar("_SpecT", bound=JobSpec)
_PartT = TypeVar("_PartT", bound=LatencySpec)


def latency_pointer(spec: JobSpec) -> tuple[str, LatencySpec] | None:
    """The limit or the objective that says which latency counts, and where it is; None when none does."""
    for i, limit in enumerate(spec.constraints):
        if limit.metric is ConstraintMetric.LATENCY_MS:
            return f"/constraints/{i}", limit
    for i, objective in enumerate(spec.objectives):
        if objective.metric is ObjectiveMetric.LATENCY_MS:
            return f"/objectives/{i}", objective
    return None


def latency_table(constraints: Sequence[ConstraintSpec], objectives: Sequence[ObjectiveSpec]) -> LatencyTable | None:
    """The table of a filled spec; None when no latency counts, or one that is measured on the worker."""
    part = next((part for part in (*constraints, *objectives) if part.table is not None), None)
    return LatencyTable.from_json(part.table) if part is not None else None


def measured_limit(constraints: Sequence[ConstraintSpec]) -> ConstraintSpec | None:
    """The limit on latency that candidates are measured for on the worker, in a filled spec."""
    return next((limit for limit in constraints if limit.device == WORKER), None)


def resolve_latency(spec: _SpecT, known: Mapping[str, LatencyTable]) -> tuple[_SpecT, LatencyTable | None]:
    """Fill what a limit or objective on latency leaves open, and put the table into the spec.

    Args:
        spec: of a search of a space.
        known: tables of the devices that the spec names by id.

    Returns:
        The filled spec and the table; None without latency, or when it is measured on the worker.

    Raises:
        ValidationFailed: no such table, one that cannot be read, or that was measured otherwise than is asked for.
    """
    _check_one_device(spec)
    found = latency_pointer(spec)
    if found is None:
        return spec, None
    pointer, part = found
    if part.device == WORKER:
        return _with_part(spec, _measured(part)), None
    table = _read(part, pointer, known)
    setting = table.setting
    _check_setting(part, setting, pointer)
    filled = _filled(part, setting.batch_size, setting.percentile, setting.runtime)
    return _with_part(spec, filled.model_copy(update={"table": table.to_json(), "table_digest": table.digest()})), table


def check_table(spec: JobSpec, table: LatencyTable, space: Space, num_classes: int) -> list[ErrorItem]:
    """Refuse a table that cannot price the space; the returned warnings tell how far its predictions are off.

    Raises:
        ValidationFailed: names each axis and value without an entry.
    """
    found = latency_pointer(spec)
    assert found is not None, "a table comes from a limit or an objective on latency"
    pointer = f"{found[0]}/table" if found[1].device is None else f"{found[0]}/device"
    if gaps := table.gaps(space, num_classes):
        raise ValidationFailed.of(
            [
                ErrorItem(
                    pointer,
                    "not_in_table",
                    f"the table has no entry for {gap.pointer[1:]} {gap.found} of space {space.name!r}, "
                    f"it has {gap.allowed}",
                    gap.allowed,
                )
                for gap in gaps
            ]
        )
    if table.mape is None:
        detail = "the table has no held-out networks, so nobody knows how far its predictions are off"
        return [ErrorItem(pointer, "latency_error_unknown", detail)]
    if table.mape > _LARGE_ERROR:
        networks = f"{len(table.held_out)} held-out networks"
        detail = f"predictions of the table are off by {table.mape:.0%} on average over {networks}"
        return [ErrorItem(pointer, "latency_error_large", detail)]
    return []


def measured_alone(spec: _SpecT, why: str) -> _SpecT:
    """Fill a limit on latency where no table can predict it, so that it has to be measured on the worker.

    Raises:
        ValidationFailed: latency is an objective, or that of a table is limited.
    """
    found = latency_pointer(spec)
    if found is None:
        return spec
    pointer, part = found
    only = f"{why}; limit latency_ms with device {WORKER!r}, which measures every width"
    if isinstance(part, ObjectiveSpec):
        raise ValidationFailed.of([ErrorItem(f"{pointer}/metric", "not_allowed", only)])
    if part.device != WORKER:
        field = "table" if part.table is not None else "device"
        raise ValidationFailed.of([ErrorItem(f"{pointer}/{field}", "not_allowed", only, [WORKER])])
    _check_one_device(spec)
    return _with_part(spec, _measured(part))


def _check_one_device(spec: JobSpec) -> None:
    """Refuse an objective on latency that no table can serve, or that says again what the limit says."""
    found = latency_pointer(spec)
    if found is None:
        return
    pointer, part = found
    if isinstance(part, ObjectiveSpec):
        if part.device is None and part.table is None:
            detail = "latency_ms needs a device (an id of GET /devices) or a table, here or in a limit on latency_ms"
            raise ValidationFailed.of([ErrorItem(f"{pointer}/device", "required", detail)])
        return
    for i, objective in enumerate(spec.objectives):
        if objective.metric is not ObjectiveMetric.LATENCY_MS:
            continue
        if part.device == WORKER:
            detail = "an objective needs the table of a device, and the limit on latency_ms is measured on the worker"
            raise ValidationFailed.of([ErrorItem(f"/objectives/{i}/metric", "not_allowed", detail)])
        if objective.latency_fields:
            detail = f"found {', '.join(objective.latency_fields)}, but {pointer} says already which latency counts"
            raise ValidationFailed.of([ErrorItem(f"/objectives/{i}/{objective.latency_fields[0]}", "conflict", detail)])


def _read(part: LatencySpec, pointer: str, known: Mapping[str, LatencyTable]) -> LatencyTable:
    if part.table is None:
        assert part.device is not None, "the spec has one of the two"
        if part.device not in known:
            detail = f"there is no device {shortened(part.device)!r}; name one of GET /devices by its id, or {WORKER}"
            raise ValidationFailed.of([ErrorItem(f"{pointer}/device", "unknown_device", detail, [*known, WORKER])])
        table = known[part.device]
    else:
        try:
            table = LatencyTable.from_json(part.table)
        except LatencyError as error:
            raise ValidationFailed.of(field_errors(f"{pointer}/table", error.problems)) from error
    if part.table_digest is not None and part.table_digest != table.digest():
        detail = f"the table has digest {table.digest()}; leave the field out, or give the table that it is of"
        raise ValidationFailed.of([ErrorItem(f"{pointer}/table_digest", "conflict", detail, [table.digest()])])
    return table


def _check_setting(part: LatencySpec, setting: LatencySetting, pointer: str) -> None:
    items = []
    for name in ("batch_size", "percentile", "runtime"):
        asked, measured = getattr(part, name), getattr(setting, name)
        if asked is not None and asked != measured:
            detail = f"found {asked}, but the table of {setting.device!r} was measured with {measured}"
            items.append(ErrorItem(f"{pointer}/{name}", "not_in_table", detail, [measured]))
    if items:
        raise ValidationFailed.of(items)


def _measured(part: _PartT) -> _PartT:
    """What is measured on the worker: one image, the median, and PyTorch, unless something else is asked for."""
    return _filled(part, 1, 50, Runtime.TORCH)


def _filled(part: _PartT, batch_size: int, percentile: int, runtime: Runtime) -> _PartT:
    return part.model_copy(
        update={
            "batch_size": part.batch_size or batch_size,
            "percentile": part.percentile or percentile,
            "runtime": part.runtime or runtime,
        }
    )


def _with_part(spec: _SpecT, filled: LatencySpec) -> _SpecT:
    """The spec with its limit or objective on latency replaced."""
    name = "constraints" if isinstance(filled, ConstraintSpec) else "objectives"
    parts = [filled if part.metric.value == "latency_ms" else part for part in getattr(spec, name)]
    return spec.model_copy(update={name: parts})
