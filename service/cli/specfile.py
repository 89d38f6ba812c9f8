"""The body of a search from a file, flags, or both; flags win."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from service.cli import strict_yaml
from service.cli.failures import UsageProblem
from service.errors import shortened

Json = dict[str, Any]

# No search is deeper than a few levels; the server has the same limit.
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says of a search; None where it says nothing."""

    dataset: str | None = None
    method: str | None = None
    space: str | None = None
    max_params_m: float | None = None
    max_gmacs: float | None = None
    max_weight_mb: float | None = None
    max_peak_mem_mb: float | None = None
    max_latency_ms: float | None = None
    device: str | None = None
    seed: int | None = None
    name: str | None = None
    assignments: Sequence[str] = ()

    def apply(self, spec: Json) -> Json:
        """The spec with these values in it; the given one is left as it is.

        Raises:
            UsageProblem: when an assignment cannot be read or does not fit the spec's shape, or a device is named
                without a limit on latency.
        """
        made: Json = json.loads(json.dumps(spec))
        for field, value in {"method": self.method, "seed": self.seed, "name": self.name}.items():
            if value is not None:
                made[field] = value
        _set_reference(made, "dataset", "id", self.dataset)
        _set_reference(made, "space", "preset", self.space)
        for metric in ("params_m", "gmacs", "weight_mb", "peak_mem_mb", "latency_ms"):
            _set_limit(made, metric, getattr(self, f"max_{metric}"))
        if self.device is not None:
            _set_device(made, self.device)
        for assignment in self.assignments:
            _assign(made, assignment)
        return made


def read_spec(path: Path) -> Json:
    """Read a search from a YAML or JSON file.

    Raises:
        UsageProblem: with line and column where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageProblem(
            f"{path} cannot be read: {error.strerror}", next_step="give the path of a YAML or JSON file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{path} is not UTF-8 text", where=f"byte {error.start}") from error
    spec = _parse(path, text)
    if not isinstance(spec, dict):
        raise UsageProblem(
            f"{path} holds {_kind(spec)}, not the fields of a search",
            allowed="a mapping such as `method: masktas`",
            next_step="put one field on each line: `name: value`",
        )
    return spec


def _parse(path: Path, text: str) -> Any:
    try:
        value = _parse_json(path, text) if path.suffix == ".json" else _parse_yaml(path, text)
    except RecursionError as error:
        raise _too_deep(path) from error
    if _is_deeper(value, _MAX_DEPTH):
        raise _too_deep(path)
    return value


def _parse_json(path: Path, text: str) -> Any:
    try:
        return json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer, object_pairs_hook=_unique_keys
        )
    except json.JSONDecodeError as error:
        raise UsageProblem(
            f"{path} is not valid JSON: {error.msg}",
            where=f"line {error.lineno}, column {error.colno}",
            next_step="correct that line, or use YAML and a name that ends in .yaml",
        ) from error


def _no_constant(name: str) -> float:
    raise UsageProblem(f"{name} is no number in JSON", next_step="leave the field out to get its default")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UsageProblem(f"the number {shortened(text)} is too large")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageProblem(f"the number {shortened(text)} has too many digits") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise UsageProblem(f"{shortened(key)!r} is given twice", next_step="keep one of the two")
        found[key] = value
    return found


def _too_deep(path: Path) -> UsageProblem:
    return UsageProblem(f"{path} is nested more than {_MAX_DEPTH} levels deep")


def _is_deeper(value: Any, depth: int) -> bool:
    """True when lists and mappings lie more than ``depth`` levels inside each other."""
    level = [value]
    for _ in range(depth + 1):
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [child for children in inner for child in children]
        if not level:
            return False
    return True


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        return strict_yaml.load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageProblem(
            f"{path} is not valid YAML: {error.problem or error.context}",
            where=where,
            next_step="correct that line; fields of one level start in the same column, with spaces and no tabs",
        ) from error
    except yaml.YAMLError as error:
        raise UsageProblem(f"{path} is not valid YAML: {error}") from error


def _set_reference(spec: Json, field: str, key: str, value: str | None) -> None:
    if value is None:
        return
    if isinstance(spec.get(field), dict):
        spec[field][key] = value
    else:
        spec[field] = value


def _set_limit(spec: Json, metric: str, value: float | None) -> None:
    if value is None:
        return
    limits = spec.setdefault("constraints", [])
    if not isinstance(limits, list):
        raise UsageProblem("the limit cannot be added: constraints is not a list", where="/constraints")
    for limit in limits:
        if isinstance(limit, dict) and limit.get("metric") == metric:
            limit["max"] = value
            return
    limits.append({"metric": metric, "max": value})


def _set_device(spec: Json, device: str) -> None:
    limits = spec.get("constraints")
    limit = next((x for x in limits if x.get("metric") == "latency_ms"), None) if isinstance(limits, list) else None
    if limit is None:
        raise UsageProblem("--device says whose latency is limited", next_step="give --max-latency-ms as well")
    # What is known of another device does not hold for this one.
    for known in ("table", "table_digest"):
        limit.pop(known, None)
    limit["device"] = device


def _assign(spec: Json, assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise UsageProblem(
            f"--set {assignment} cannot be read", allowed="FIELD=VALUE with dots between levels: search.population=20"
        )
    target: Any = spec
    for depth, key in enumerate(keys[:-1]):
        target = _step(target, key, ".".join(keys[: depth + 1]))
    _place(target, keys[-1], _parse(Path("--set"), text), path)


def _step(target: Any, key: str, path: str) -> Any:
    match target:
        case dict():
            return target.setdefault(key, {})
        case list() if key.isdecimal() and int(key) < len(target):
            return target[int(key)]
        case _:
            raise UsageProblem(f"--set {path}: there is no such field to go into")


def _place(target: Any, key: str, value: Any, path: str) -> None:
    match target:
        case dict():
            target[key] = value
        case list() if key.isdecimal() and int(key) < len(target):
            target[int(key)] = value
        case _:
            raise UsageProblem(f"--set {path}: there is no such field")


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case _:
            return f"the value {value!r}"
