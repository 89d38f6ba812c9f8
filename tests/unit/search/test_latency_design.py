from __future__ import annotations

import numpy as np
import pytest

from models.architecture import Architecture
from search.latency import LatencySetting, LatencyTable, Precision, Runtime
from search.latency_design import default_networks, design, least_networks
from search.latency_fit import fit_table
from search.presets import PRESETS, resolve
from search.space import Space

SMALL = Space(
    name="small",
    embed_dim=(16, 24),
    depth=(1, 2, 3),
    num_heads=(1, 2, 3),
    mlp_ratio=(2.0, 4.0),
    head_dim=8,
    img_size=16,
    patch_size=4,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def true_ns(arch: Architecture) -> int:
    """A device whose latency is exactly a sum over the parts."""
    blocks = zip(arch.num_heads, arch.mlp_ratio, strict=True)
    return 10_000 + 100 * arch.embed_dim + sum(arch.embed_dim * (7 * h + int(11 * r)) for h, r in blocks)


def table_from(space: Space, networks: int) -> LatencyTable:
    chosen = design(space, 10, networks, 20, rng())
    setting = LatencySetting(
        device="x",
        runtime=Runtime.TORCH,
        precision=Precision.FP32,
        batch_size=1,
        threads=1,
        percentile=50,
        warmup_runs=1,
        runs=1,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=space.in_chans,
        head_dim=space.head_dim,
        num_classes=10,
        rel_pos=space.rel_pos,
    )
    return fit_table(
        setting,
        [(arch, true_ns(arch)) for arch in chosen.fitted],
        held_out=[(arch, true_ns(arch)) for arch in chosen.held_out],
    )


@pytest.mark.parametrize("space", [SMALL, *(resolve(name) for name in PRESETS)], ids=lambda space: space.name)
def test_the_fewest_networks_tell_every_part_of_an_additive_device(space: Space) -> None:
    table = table_from(space, least_networks(space))
    assert table.gaps(space, 10) == ()
    assert table.mape == pytest.approx(0, abs=1e-4)


def test_no_network_is_both_fitted_and_held_out() -> None:
    chosen = design(SMALL, 10, 40, 20, rng())
    genotypes = [arch.genotype for arch in chosen.networks]
    assert len(set(genotypes)) == len(genotypes) == 60
    assert (len(chosen.fitted), len(chosen.held_out)) == (40, 20)


def test_widths_take_turns_among_the_held_out() -> None:
    chosen = design(SMALL, 10, 12, 10, rng())
    assert [arch.embed_dim for arch in chosen.held_out].count(16) == 5


def test_a_design_is_a_function_of_its_seed() -> None:
    assert design(SMALL, 10, 30, 20, rng()) == design(SMALL, 10, 30, 20, rng())
    assert design(SMALL, 10, 30, 20, rng()) != design(SMALL, 10, 30, 20, np.random.default_rng(1))


def test_a_space_of_few_members_is_measured_as_far_as_it_goes() -> None:
    tiny = Space(
        name="tiny", embed_dim=(16,), depth=(1, 2), num_heads=(1,), mlp_ratio=(2.0,), img_size=16, patch_size=4
    )
    chosen = design(tiny, 10, default_networks(tiny), 20, rng())
    assert (len(chosen.fitted), len(chosen.held_out)) == (2, 0)
