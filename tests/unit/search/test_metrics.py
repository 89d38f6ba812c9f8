from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.architecture import Architecture
from search import cost
from search.metrics import AFFINE_METRICS, FORMULA_METRICS, AffineCost, Metric, Window, costs_of, violation
from search.presets import PresetName, resolve
from tests.unit.search.latency_tables import table_for
from tests.unit.search.spaces import small_space


@pytest.mark.parametrize("metric", AFFINE_METRICS)
@given(
    seed=st.integers(0, 2**32),
    preset=st.sampled_from(PresetName),
    num_classes=st.integers(0, 1000),
    rel_pos=st.booleans(),
)
def test_costs_are_affine_in_depth_and_the_sums_over_blocks(
    metric: Metric, seed: int, preset: PresetName, num_classes: int, rel_pos: bool
) -> None:
    space = resolve(preset, overrides={"rel_pos": rel_pos})
    arch = space.sample(np.random.default_rng(seed), num_classes)
    affine = AffineCost.of(metric, space, arch.embed_dim, num_classes)
    assert affine.count(arch.depth, sum(arch.num_heads), sum(arch.mlp_dims)) == metric.count_of(arch)


@pytest.mark.parametrize("metric", FORMULA_METRICS)
def test_costs_grow_with_every_gene(metric: Metric) -> None:
    space = small_space()
    for arch in space.members():
        for bigger in grown(arch):
            assert metric.count_of(bigger) > metric.count_of(arch)


def grown(arch: Architecture) -> list[Architecture]:
    """The networks with one gene a step larger."""
    larger = [replace(arch, embed_dim=arch.embed_dim + 8)]
    larger.append(replace(arch, depth=arch.depth + 1, num_heads=(*arch.num_heads, 1), mlp_ratio=(*arch.mlp_ratio, 2.0)))
    for i in range(arch.depth):
        heads, ratios = list(arch.num_heads), list(arch.mlp_ratio)
        heads[i] += 1
        ratios[i] += 0.5
        larger += [replace(arch, num_heads=tuple(heads)), replace(arch, mlp_ratio=tuple(ratios))]
    return larger


def test_metrics_count_what_the_cost_model_reports() -> None:
    arch = small_space().largest(num_classes=10)
    priced = cost.cost(arch)
    assert Metric.PARAMS_M.count_of(arch) / Metric.PARAMS_M.unit == priced.params_m
    assert Metric.GMACS.count_of(arch) / Metric.GMACS.unit == priced.gmacs
    assert Metric.WEIGHT_MB.count_of(arch) == 4 * priced.params


def test_latency_has_a_price_only_with_a_table() -> None:
    space = small_space()
    arch, table = space.largest(3), table_for(space)
    with pytest.raises(ValueError, match="only with the table of a device"):
        Metric.LATENCY_MS.count_of(arch)
    assert "latency_ms" not in costs_of(arch)
    assert costs_of(arch, table)["latency_ms"] == table.predict_ns(arch) / 1e6


def test_violation_is_zero_inside_and_relative_to_the_broken_bound_outside() -> None:
    windows = [Window(Metric.PARAMS_M, 100, 200), Window(Metric.GMACS, None, 50)]
    assert violation(windows, {Metric.PARAMS_M: 100, Metric.GMACS: 50}) == 0
    assert violation(windows, {Metric.PARAMS_M: 200, Metric.GMACS: 1}) == 0
    assert violation(windows, {Metric.PARAMS_M: 90, Metric.GMACS: 75}) == pytest.approx(0.1 + 0.5)
    assert violation(windows, {Metric.PARAMS_M: 220, Metric.GMACS: 50}) == pytest.approx(0.1)
