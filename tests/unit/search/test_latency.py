import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.latency import MAX_BLOCKS, MAX_NS, HeldOut, LatencyError, LatencyTable
from search.latency_fit import fit_table
from tests.unit.search.latency_tables import setting_for, sum_of_parts, table_for
from tests.unit.search.spaces import small_space

SPACE = small_space()
MEMBERS = list(SPACE.members(3))


@pytest.mark.parametrize("joint", [False, True])
def test_a_prediction_is_the_exact_sum_of_the_entries(joint: bool) -> None:
    table = table_for(SPACE, joint=joint)
    assert [table.predict_ns(arch) for arch in MEMBERS] == [sum_of_parts(table, arch) for arch in MEMBERS]


def test_a_part_without_an_entry_is_named_with_the_values_that_have_one() -> None:
    table = table_for(SPACE)
    wider = SPACE.largest(3)
    cases = {
        "/embed_dim": (replace(wider, embed_dim=32), "one of 16, 24"),
        "/num_heads/2": (replace(wider, num_heads=(2, 2, 5)), "one of 1, 2 at width 24"),
        "/mlp_ratio/0": (replace(wider, mlp_ratio=(3.0, 2.0, 2.0)), "one of 2, 2.5, 4 at width 24 with 2 heads"),
        "/img_size": (replace(wider, img_size=16), "8, which the networks of the table have"),
        "/distilled": (replace(wider, distilled=True, pool="token"), "false: the networks of the table have none"),
    }
    for pointer, (arch, allowed) in cases.items():
        with pytest.raises(LatencyError) as caught:
            table.predict_ns(arch)
        assert [(p.pointer, p.allowed) for p in caught.value.problems] == [(pointer, allowed)]


def test_gaps_name_each_axis_of_a_space_once() -> None:
    table = table_for(SPACE)
    assert table.gaps(SPACE, 3) == ()
    wider = small_space(embed_dim=(16, 32), num_heads=(1, 3), mlp_ratio=(2.0, 3.0))
    assert [(p.pointer, p.found) for p in table.gaps(wider, 3)] == [
        ("/mlp_ratio", 3.0),
        ("/num_heads", 3),
        ("/embed_dim", 32),
    ]


def test_gaps_of_the_richest_space_in_the_longest_table_are_found_at_once() -> None:
    space = small_space(
        embed_dim=tuple(range(64, 128)), num_heads=tuple(range(1, 65)), mlp_ratio=tuple(1 + i / 8 for i in range(48))
    )
    rows = {(width, heads, 9.5): 1 for width in range(64, 128) for heads in range(1, 65)}
    table = LatencyTable(setting_for(space), dict.fromkeys(range(64, 128), 1), rows)
    start = time.process_time()
    assert len(table.gaps(space, 3)) == 48
    assert time.process_time() - start < 5


def test_a_head_that_counts_for_little_may_differ_and_one_that_counts_may_not() -> None:
    table = table_for(SPACE)
    assert table.gaps(SPACE, 4) == ()
    (problem,) = table.gaps(SPACE, 1000)
    assert (problem.pointer, problem.found) == ("/num_classes", 1000)


def test_json_form_is_read_back_to_an_equal_table() -> None:
    held_out = [HeldOut(MEMBERS[0].genotype, 90, 100), HeldOut(MEMBERS[1].genotype, 130, 100)]
    table = table_for(SPACE, held_out=held_out)
    again = LatencyTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    assert hash(again) == hash(table)
    assert again.digest() == table.digest()
    assert again.mape == pytest.approx(0.2)
    assert table_for(SPACE).digest() != table.digest()


def test_the_example_of_the_documentation_is_a_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
    (example,) = [block.split("```")[0] for block in text.split("```json")[1:] if "fixed_ns" in block]
    table = LatencyTable.from_json(json.loads(example))
    (known,) = table.held_out
    arch = replace(SPACE.smallest(10), img_size=32, in_chans=3, patch_size=8, head_dim=16)
    depth, *genes, width = known.genotype
    ratios, heads = tuple(genes[: len(genes) // 2]), tuple(int(gene) for gene in genes[len(genes) // 2 :])
    assert known.predicted_ns == table.predict_ns(
        replace(arch, embed_dim=int(width), depth=int(depth), mlp_ratio=ratios, num_heads=heads)
    )


def test_a_table_without_held_out_networks_knows_no_error() -> None:
    assert table_for(SPACE).mape is None


def changed(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        json.dumps(table_for(SPACE, held_out=[HeldOut(MEMBERS[0].genotype, 9, 10)]).to_json())
    )
    edit(document)
    return document


@pytest.mark.parametrize(
    ("edit", "pointer"),
    [
        (lambda d: d.update(extra=1), "/extra"),
        (lambda d: d.pop("runs"), "/runs"),
        (lambda d: d.update(schema_version=2), "/schema_version"),
        (lambda d: d.update(schema_version=True), "/schema_version"),
        (lambda d: d.update(device=""), "/device"),
        (lambda d: d.update(device="x" * 1000), "/device"),
        (lambda d: d.update(runtime="tvm"), "/runtime"),
        (lambda d: d.update(precision=[]), "/precision"),
        (lambda d: d.update(batch_size=0), "/batch_size"),
        (lambda d: d.update(threads=1.5), "/threads"),
        (lambda d: d.update(percentile=100), "/percentile"),
        (lambda d: d.update(img_size=10**9), "/img_size"),
        (lambda d: d.update(rel_pos="no"), "/rel_pos"),
        (lambda d: d.update(fixed_ns=[]), "/fixed_ns"),
        (lambda d: d.update(fixed_ns={}), "/fixed_ns"),
        (lambda d: d["fixed_ns"].append(d["fixed_ns"][0]), "/fixed_ns/2"),
        (lambda d: d["fixed_ns"].append([16]), "/fixed_ns/2"),
        (lambda d: d["fixed_ns"].__setitem__(0, [16, -1]), "/fixed_ns/0"),
        (lambda d: d["fixed_ns"].__setitem__(0, [16, MAX_NS + 1]), "/fixed_ns/0"),
        (lambda d: d["fixed_ns"].__setitem__(0, [16, 1.5]), "/fixed_ns/0"),
        (lambda d: d["fixed_ns"].pop(0), "/block_ns/0"),
        (lambda d: d.update(block_ns=d["block_ns"] * MAX_BLOCKS), "/block_ns"),
        (lambda d: d["block_ns"].__setitem__(1, [16, [], 2.0, 5]), "/block_ns/1"),
        (lambda d: d["block_ns"].__setitem__(1, [16, 1, float("nan"), 5]), "/block_ns/1"),
        (lambda d: d["block_ns"].__setitem__(1, [16, 1, 2.5, float("inf")]), "/block_ns/1"),
        (lambda d: d["block_ns"].__setitem__(1, None), "/block_ns/1"),
        (lambda d: d["held_out"].append(5), "/held_out/1"),
        (lambda d: d["held_out"][0].update(measured_ns=0), "/held_out/0/measured_ns"),
        (lambda d: d["held_out"][0].update(genotype=[1, 2.0]), "/held_out/0/genotype"),
        (lambda d: d["held_out"][0].update(genotype=[10**9]), "/held_out/0/genotype"),
    ],
)
def test_a_table_that_is_none_is_refused_by_name(edit: Callable[[dict[str, Any]], object], pointer: str) -> None:
    with pytest.raises(LatencyError) as caught:
        LatencyTable.from_json(changed(edit))
    assert caught.value.problems[0].pointer == pointer
    assert max(len(str(problem)) for problem in caught.value.problems) < 500


@settings(max_examples=25)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5))
def test_whatever_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(LatencyError):
        LatencyTable.from_json(document)


@pytest.mark.parametrize("joint", [False, True])
def test_a_fit_recovers_a_table_that_is_a_sum(joint: bool) -> None:
    truth = table_for(SPACE, joint=joint)
    table = fit_table(setting_for(SPACE), [(arch, truth.predict_ns(arch)) for arch in MEMBERS], joint=joint)
    assert [table.predict_ns(arch) for arch in MEMBERS] == pytest.approx(
        [truth.predict_ns(arch) for arch in MEMBERS], abs=10
    )


def test_a_fit_tells_its_error_on_networks_that_took_no_part() -> None:
    rng = np.random.default_rng(0)
    noisy = [(arch, round(table_for(SPACE).predict_ns(arch) * rng.normal(1, 0.02))) for arch in MEMBERS]
    table = fit_table(setting_for(SPACE), noisy[::2], held_out=noisy[1::2])
    assert len(table.held_out) == len(noisy[1::2])
    assert table.held_out[0].measured_ns == noisy[1][1]
    assert table.held_out[0].predicted_ns == table.predict_ns(noisy[1][0])
    assert table.mape is not None
    assert 0.005 < table.mape < 0.03


def test_a_fit_has_no_negative_times_and_is_repeatable() -> None:
    # More heads take less time here: a plain least-squares fit would give a negative entry.
    odd = [(arch, 1_000 + 2_000 * arch.num_heads.count(1)) for arch in MEMBERS]
    table = fit_table(setting_for(SPACE), odd)
    assert min((*table.fixed_ns.values(), *table.block_ns.values())) >= 0
    assert fit_table(setting_for(SPACE), odd) == table


def test_a_fit_refuses_what_it_cannot_use() -> None:
    setting = setting_for(SPACE)
    small, large = SPACE.smallest(3), SPACE.largest(3)
    for measured, held_out, pointer in (
        ([], [], "/measured"),
        ([(small, 0)], [], "/measured/0"),
        ([(small, 100)], [(large, 100)], "/held_out/0/embed_dim"),
        ([(replace(small, img_size=16), 100)], [], "/measured/0/img_size"),
    ):
        with pytest.raises(LatencyError) as caught:
            fit_table(setting, measured, held_out=held_out)
        assert caught.value.problems[0].pointer == pointer
