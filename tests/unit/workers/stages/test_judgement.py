"""How measures and controls are compared with what labels tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search.fusion import LogRankFusion
from search.ranking import kendall
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, search_start
from workers.stages.judgement import Truth, judge
from workers.stages.report import judge_by_retraining
from workers.stages.search_context import SearchContext

CONTROLS = ["params", "width", "random"]
ACCURACIES = [0.1, 0.4, 0.2, 0.9, 0.3, 0.6, 0.8, 0.5]
GENOTYPES = [(1, r, h, d) for r in (1.0, 2.0) for h in (1, 2) for d in (16, 32)]


def context(folder: Path, **search: Any) -> SearchContext:
    return SearchContext(search_start(merged(TINY, {"search": search}), folder), RecordingChannel())


def networks(**columns: list[float | None]) -> list[dict[str, Any]]:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{"genotype": list(g), "scores": row} for g, row in zip(GENOTYPES, rows, strict=True)]


def table(ctx: SearchContext, **columns: list[float | None]) -> dict[str, Any]:
    judged = judge(ctx, networks(**columns), Truth("accuracy of something", "accuracy", ACCURACIES))
    assert judged is not None
    return judged


def by_name(judged: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in judged["measures"]}


def test_every_measure_that_was_taken_and_every_control_has_a_row(tmp_path: Path) -> None:
    reverse = [-a for a in ACCURACIES]
    judged = table(context(tmp_path), consistency=list(ACCURACIES), reconstruction=reverse)
    rows = by_name(judged)
    assert list(rows) == ["consistency", "reconstruction", "fused", *CONTROLS]
    assert rows["consistency"]["kendall"] == rows["consistency"]["spearman"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert rows["reconstruction"]["kendall"]["value"] == -1.0
    assert (judged["networks"], judged["values"]) == (8, {"min": 0.1, "max": 0.9})


def test_gain_is_the_lead_over_the_parameter_count(tmp_path: Path) -> None:
    rows = by_name(table(context(tmp_path), consistency=list(ACCURACIES)))
    params = rows["params"]
    assert params["gain_over_params"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert rows["consistency"]["gain_over_params"]["value"] == pytest.approx(1 - params["kendall"]["value"])
    widths = [genotype[-1] for genotype in GENOTYPES]
    assert rows["width"]["kendall"]["value"] == pytest.approx(kendall(widths, ACCURACIES))


def test_networks_that_lack_a_measure_are_left_out_of_its_row_alone(tmp_path: Path) -> None:
    partly = [None, *ACCURACIES[1:]]
    rows = by_name(table(context(tmp_path), consistency=list(ACCURACIES), feature=partly))
    assert {name: row["networks"] for name, row in rows.items()} == {
        "consistency": 8,
        "feature": 7,
        **dict.fromkeys(CONTROLS, 8),
    }


def test_fused_is_judged_also_where_the_search_did_not_follow_it(tmp_path: Path) -> None:
    columns = {"consistency": ACCURACIES[1:] + ACCURACIES[:1], "feature": list(ACCURACIES)}
    rows = by_name(table(context(tmp_path, fusion=["consistency", "feature"]), **columns))
    scores = [network["scores"] for network in networks(**columns)]
    fusion = LogRankFusion(("consistency", "feature"), scores)
    expected = kendall([fusion.score(row) or 0.0 for row in scores], ACCURACIES)
    assert rows["fused"]["kendall"]["value"] == pytest.approx(expected)


def test_sentence_is_about_what_the_search_followed(tmp_path: Path) -> None:
    columns = {"consistency": [-a for a in ACCURACIES], "feature": list(ACCURACIES)}
    judged = table(context(tmp_path, metric="feature"), **columns)
    assert judged["metric"] == "feature"
    assert judged["sentence"].startswith("Score (feature) and accuracy agree with Kendall's tau 1 [1, 1]")


def test_a_score_without_spread_is_not_judged(tmp_path: Path) -> None:
    same = networks(consistency=[-0.5] * 8)
    assert judge(context(tmp_path), same, Truth("accuracy of something", "accuracy", ACCURACIES)) is None


@pytest.mark.parametrize(("retrained", "judged"), [(9, False), (10, True)])
def test_accuracies_after_retraining_are_a_truth_once_there_are_enough(
    retrained: int, judged: bool, tmp_path: Path
) -> None:
    ctx = context(tmp_path)
    best = [
        {"n": n, "genotype": [2, 1.0, 2.0, 1 + n % 2, 1, 16], "scores": {"consistency": -float(n)}} for n in range(11)
    ]
    done = [{"n": n, "val": n / 20} for n in reversed(range(retrained))]
    ctx.outputs |= {"search": {"best": best}, "retrain": {"networks": done}}
    table = judge_by_retraining(ctx)
    assert (table is not None) == judged
    if table is not None:
        assert (table["truth"], table["networks"]) == ("validation accuracy after retraining", 10)
        assert table["values"] == {"min": 0.0, "max": 9 / 20}
        assert by_name(table)["consistency"]["kendall"]["value"] == -1.0
