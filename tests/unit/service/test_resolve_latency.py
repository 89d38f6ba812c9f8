"""Limits on latency, peak memory and bytes of weights in the body of a search."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from search.constraints import reachable_range
from search.latency import HeldOut, LatencyTable, Runtime
from search.metrics import Metric
from search.presets import PresetName
from search.presets import resolve as resolve_preset
from service.datasets.builtin import BUILTINS
from service.errors import ConstraintUnsatisfiable, ErrorItem, ServiceError
from service.jobs.resolve import Resolved, constraints_of, latency_table, measured_limit, resolve_search, window_of
from service.jobs.resolve.warm_start import check_window
from service.jobs.spec import ConstraintSpec, SearchSpec
from service.supernets.info import SupernetInfo
from tests.unit.search.latency_tables import table_for

SPACE = resolve_preset(PresetName.MICRO, img_size=8, in_chans=1)
HELD_OUT = HeldOut(SPACE.smallest().genotype, 100, 101)
TABLE = table_for(SPACE, 10, held_out=[HELD_OUT])
RANGE = reachable_range(SPACE, Metric.LATENCY_MS, 10, TABLE)
MIDDLE = (RANGE.min + RANGE.max) / 2
SCORE = {"metric": "score", "goal": "max"}
LATENCY = {"metric": "latency_ms", "goal": "min"}


def resolve(known: Mapping[str, LatencyTable] | None = None, **fields: Any) -> Resolved:
    spec = SearchSpec.model_validate({"method": "masktas", "dataset": "digits", **fields})
    return resolve_search(spec, BUILTINS["digits"], tables=known or {})


def limited(known: Mapping[str, LatencyTable] | None = None, **limit: Any) -> Resolved:
    return resolve(known, constraints=[{"metric": "latency_ms", "max": MIDDLE, **limit}])


def refused(known: Mapping[str, LatencyTable] | None = None, **fields: Any) -> ErrorItem:
    with pytest.raises(ServiceError) as caught:
        resolve(known, **fields)
    return caught.value.errors[0]


def limit_refused(known: Mapping[str, LatencyTable] | None = None, **limit: Any) -> ErrorItem:
    return refused(known, constraints=[{"metric": "latency_ms", "max": MIDDLE, **limit}])


def test_the_table_of_a_named_device_is_kept_in_the_spec_which_is_a_body_again() -> None:
    resolved = limited({"dev_1": TABLE}, device="dev_1")
    (limit,) = resolved.spec.constraints
    assert (limit.device, limit.batch_size, limit.percentile, limit.runtime) == ("dev_1", 1, 50, Runtime.TORCH)
    assert limit.table_digest == TABLE.digest()
    assert latency_table(resolved.spec.constraints, resolved.spec.objectives) == TABLE == resolved.table
    # The device may be gone by the time that the job is repeated.
    assert resolve_search(resolved.spec, BUILTINS["digits"]).spec == resolved.spec


def test_only_networks_within_the_limit_are_feasible() -> None:
    resolved = limited(table=TABLE.to_json())
    feasible = resolved.feasible()
    assert 0 < feasible.count < resolved.space.size()
    assert TABLE.predict_ns(resolved.space.decode(feasible.member(0), 10)) <= MIDDLE * 1e6
    assert [r.metric for r in resolved.reachable] == list(Metric)
    assert RANGE in resolved.reachable


def test_a_limit_at_the_exact_minimum_is_met_and_below_it_is_refused_with_the_range() -> None:
    assert limited(table=TABLE.to_json(), max=RANGE.min).feasible().count > 0
    with pytest.raises(ConstraintUnsatisfiable) as caught:
        limited(table=TABLE.to_json(), max=(RANGE.low - 1) / 1e6)
    assert caught.value.errors[0].pointer == "/constraints/0/max"
    assert RANGE.to_json() in caught.value.extra["reachable"]


@pytest.mark.parametrize("metric", [Metric.WEIGHT_MB, Metric.PEAK_MEM_MB])
def test_limits_on_bytes_need_no_device(metric: Metric) -> None:
    reach = next(r for r in resolve().reachable if r.metric is metric)
    assert resolve(constraints=[{"metric": metric.value, "max": reach.min}]).feasible().count > 0
    below = (reach.low - 1) / metric.unit
    assert refused(constraints=[{"metric": metric.value, "max": below}]).pointer == "/constraints/0/max"


def test_a_limit_measured_on_the_worker_is_filled_and_left_to_the_search() -> None:
    limits = [{"metric": "latency_ms", "max": 5.0, "device": "worker"}, {"metric": "params_m", "max": 1e3}]
    resolved = resolve(constraints=limits)
    limit = measured_limit(resolved.spec.constraints)
    assert limit is not None
    assert (limit.max, limit.batch_size, limit.percentile, limit.runtime) == (5.0, 1, 50, Runtime.TORCH)
    assert [constraint.metric for constraint in constraints_of(resolved.spec.constraints)] == [Metric.PARAMS_M]
    assert resolved.table is None
    # Pointers are those of the body, in which the limit on parameters is the second.
    assert [(w.code, w.pointer) for w in resolved.warnings] == [("not_binding", "/constraints/1/max")]


def test_an_objective_takes_the_device_of_the_limit_or_its_own() -> None:
    of_limit = resolve(
        {"dev_1": TABLE},
        constraints=[{"metric": "latency_ms", "max": MIDDLE, "device": "dev_1"}],
        objectives=[SCORE, LATENCY],
    )
    assert of_limit.spec.objectives[1].latency_fields == ()
    own = resolve({"dev_1": TABLE}, objectives=[SCORE, {**LATENCY, "device": "dev_1"}])
    assert own.spec.objectives[1].table_digest == TABLE.digest()
    for resolved in (of_limit, own):
        assert resolved.table == TABLE
        assert resolve_search(resolved.spec, BUILTINS["digits"]).spec == resolved.spec


@pytest.mark.parametrize(
    ("limit", "pointer", "code"),
    [
        ({"device": "dev_2"}, "/constraints/0/device", "unknown_device"),
        ({"table": {}}, "/constraints/0/table/batch_size", "invalid_value"),
        ({"table": {**TABLE.to_json(), "runs": 0}}, "/constraints/0/table/runs", "invalid_value"),
        ({"device": "dev_1", "batch_size": 8}, "/constraints/0/batch_size", "not_in_table"),
        ({"device": "dev_1", "percentile": 95}, "/constraints/0/percentile", "not_in_table"),
        ({"device": "dev_1", "runtime": "onnxruntime"}, "/constraints/0/runtime", "not_in_table"),
        ({"device": "dev_1", "table_digest": "0" * 64}, "/constraints/0/table_digest", "conflict"),
    ],
)
def test_what_a_table_cannot_serve_is_refused_by_field(limit: dict[str, Any], pointer: str, code: str) -> None:
    item = limit_refused({"dev_1": TABLE}, **limit)
    assert (item.pointer, item.code) == (pointer, code)


def test_a_table_of_another_space_is_refused_with_the_axis_and_both_values() -> None:
    other = table_for(resolve_preset(PresetName.MICRO, img_size=8, in_chans=1, overrides={"embed_dim": [48, 64]}), 10)
    item = limit_refused({"dev_1": other}, device="dev_1")
    assert (item.pointer, item.code, item.allowed) == ("/constraints/0/device", "not_in_table", "one of 48, 64")
    assert "embed_dim 96" in item.detail


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"objectives": [SCORE, LATENCY]}, "/objectives/1/device"),
        (
            {
                "objectives": [SCORE, {**LATENCY, "device": "dev_1"}],
                "constraints": [{"metric": "latency_ms", "max": MIDDLE, "device": "dev_1"}],
            },
            "/objectives/1/device",
        ),
        (
            {
                "objectives": [SCORE, LATENCY],
                "constraints": [{"metric": "latency_ms", "max": MIDDLE, "device": "worker"}],
            },
            "/objectives/1/metric",
        ),
    ],
)
def test_an_objective_without_one_clear_table_is_refused(fields: dict[str, Any], pointer: str) -> None:
    assert refused({"dev_1": TABLE}, **fields).pointer == pointer


@pytest.mark.parametrize(
    "constraint",
    [
        {"metric": "latency_ms", "max": 5},
        {"metric": "latency_ms", "max": 5, "device": "worker", "table": {}},
        {"metric": "params_m", "max": 5, "device": "worker"},
        {"metric": "gmacs", "max": 5, "batch_size": 1},
        {"metric": "latency_ms", "device": "worker"},
        {"metric": "latency_ms", "max": 5, "device": "worker", "batch_size": 0},
        {"metric": "latency_ms", "max": 5, "device": "worker", "runtime": "tvm"},
    ],
)
def test_a_limit_that_contradicts_itself_is_refused(constraint: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "constraints": [constraint]})


def test_limits_of_other_metrics_say_nothing_of_devices() -> None:
    shown = ConstraintSpec.model_validate({"metric": "gmacs", "max": 1.0}).model_dump(mode="json")
    assert shown == {"metric": "gmacs", "min": None, "max": 1.0}


@pytest.mark.parametrize(
    ("held_out", "codes"),
    [
        ((), ["latency_error_unknown"]),
        ((replace(HELD_OUT, measured_ns=200),), ["latency_error_large"]),
        ((HELD_OUT,), []),
    ],
)
def test_the_error_of_a_table_is_told_before_the_search(held_out: tuple[HeldOut, ...], codes: list[str]) -> None:
    table = replace(TABLE, held_out=held_out)
    assert [warning.code for warning in limited(table=table.to_json()).warnings] == codes


def test_weights_that_learnt_within_the_latency_of_another_device_are_warned_of() -> None:
    limits = limited(table=TABLE.to_json()).spec.constraints
    other = limited(table=replace(TABLE, fixed_ns={w: ns + 1 for w, ns in TABLE.fixed_ns.items()}).to_json())
    assert window_of(limits) == [{"metric": "latency_ms", "max": MIDDLE, "table_digest": TABLE.digest()}]
    warm = SupernetInfo(
        reference="sn_1",
        method="masktas",
        space=SPACE.to_json(),
        dataset=None,
        spec={},
        files={},
        outputs={},
        trained_for={"constraints": window_of(limits)},
    )
    assert check_window(limited(table=TABLE.to_json()).spec, warm) == []
    assert [item.code for item in check_window(other.spec, warm)] == ["trained_for_other_limits"]


def test_a_space_too_rich_for_a_limit_is_refused_at_that_limit() -> None:
    space = {"preset": "micro", "overrides": {"depth": [12], "num_heads": list(range(1, 9)), "mlp_ratio": [2, 4]}}
    rich = resolve_preset(PresetName.MICRO, img_size=8, in_chans=1, overrides=space["overrides"])  # type: ignore[arg-type]
    table = table_for(rich, 10, joint=True)
    limits = [
        {"metric": "params_m", "max": 1.0},
        {"metric": "latency_ms", "max": 5.0, "table": table.to_json()},
    ]
    item = refused(space=space, constraints=limits)
    assert (item.pointer, item.code) == ("/constraints/1/metric", "space_too_rich")
