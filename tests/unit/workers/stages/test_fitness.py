"""What a search follows, and what it measures on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from search.fusion import LogRankFusion
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until, search_to_export
from workers.protocol import CandidateRow, Candidates
from workers.stages.scoring import MeasureScorer
from workers.stages.search_context import SearchContext
from workers.training.masked import ImageBatches

EVERY = {"consistency", "consistency_bare", "reconstruction", "feature", "effective_rank"}


def search(folder: Path, evaluation: dict[str, Any] | None = None, **changes: Any) -> StoppingChannel:
    body = merged(TINY, {"search": {**changes, "evaluation": evaluation or {}}})
    return run_until(search_start(body, folder), StopAt("retrain"))


def rows(channel: StoppingChannel) -> list[CandidateRow]:
    return [row for batch in channel.of_type(Candidates) for row in batch.rows]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> StoppingChannel:
    return search(tmp_path_factory.mktemp("usual"))


def test_every_candidate_has_the_cheap_measures_and_judged_ones_have_all(usual: StoppingChannel) -> None:
    found = rows(usual)
    assert {frozenset(row.scores) for row in found if row.generation == 0} == {frozenset(EVERY)}
    assert {frozenset(row.scores) for row in found if row.generation > 0} == {frozenset(EVERY - {"reconstruction"})}
    assert all(row.score == row.scores["consistency"] for row in found)


def test_following_another_measure_changes_the_score_and_not_the_measures(
    usual: StoppingChannel, tmp_path: Path
) -> None:
    found = rows(search(tmp_path, {"companions": True}, metric="reconstruction"))
    assert all(row.score == row.scores["reconstruction"] for row in found)
    assert {frozenset(row.scores) for row in found} == {frozenset(EVERY)}
    first, other = ([row.scores for row in run if row.generation == 0] for run in (found, rows(usual)))
    assert first == other


def test_no_image_of_training_or_holdout_is_scored_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {"trained": set(), "scored": set()}

    def record(kind: str, owner: type, method: str) -> None:
        original = getattr(owner, method)

        def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
            images = self.images if kind == "trained" else args[2]
            seen[kind] |= set(images.rows.tolist())
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, recorded)

    record("trained", ImageBatches, "at")
    record("scored", MeasureScorer, "__init__")
    search(tmp_path)
    assert (len(seen["trained"]), len(seen["scored"])) == (1258, 64)
    assert not seen["trained"] & seen["scored"]
    context = SearchContext(search_start(TINY, tmp_path, fence=2), RecordingChannel())
    assert seen["scored"] <= set(context.dataset.val.rows.tolist())


def test_without_companions_nothing_else_is_measured(tmp_path: Path) -> None:
    found = rows(search(tmp_path, {"companions": False}, metric="feature"))
    assert {frozenset(row.scores) for row in found} == {frozenset({"feature"})}


@pytest.mark.parametrize(
    ("metric", "figure"),
    [("width", lambda row: row.genotype[-1]), ("params", lambda row: row.costs["params_m"])],
    ids=["width", "params"],
)
def test_controls_score_by_size(metric: str, figure: Any, tmp_path: Path) -> None:
    found = rows(search(tmp_path, {"companions": False}, metric=metric, baseline="none"))
    assert [row.score for row in found] == [figure(row) for row in found]


def test_random_control_is_a_number_of_the_genotype(usual: StoppingChannel, tmp_path: Path) -> None:
    first, again = (rows(search(tmp_path / n, metric="random", population=6 if n == "a" else 9)) for n in "ab")
    scores = {tuple(row.genotype): row.score for row in first}
    common = [row for row in again if tuple(row.genotype) in scores]
    assert len(common) > 3
    assert all(row.score == scores[tuple(row.genotype)] for row in common)
    assert len(set(scores.values())) == len(scores)


def test_fused_score_ranks_among_the_first_generation(tmp_path: Path) -> None:
    found = rows(search(tmp_path, metric="fused", fusion=["reconstruction", "feature"]))
    fusion = LogRankFusion(("reconstruction", "feature"), [row.scores for row in found if row.generation == 0])
    assert [row.score for row in found] == [fusion.score(row.scores) for row in found]
    assert all(row.score == row.scores["fused"] for row in found)
    assert len({row.score for row in found}) > 6


@pytest.mark.usefixtures("every_progress")
@pytest.mark.parametrize("stops", [[StopAt("search", 0.01), StopAt("search", 0.1)], [StopAt("search", 0.4)]])
def test_interrupted_fused_search_finds_the_same(stops: list[StopAt], tmp_path: Path) -> None:
    changes = {"search": {**TINY["search"], "metric": "fused", "population": 4, "generations": 2}}
    whole = search_to_export(tmp_path / "whole", changes=changes)
    assert search_to_export(tmp_path / "parts", *stops, changes=changes) == whole


def test_supernet_without_reconstruction_has_no_decoder_and_no_such_measure(tmp_path: Path) -> None:
    body = merged(TINY, {"supernet": {"reconstruction": False}})
    channel = run_until(search_start(body, tmp_path), StopAt("retrain"))
    assert not any(ref.name == "decoder.safetensors" for ref in channel.last_checkpoint.files)
    assert {frozenset(row.scores) for row in rows(channel)} == {frozenset(EVERY - {"reconstruction"})}


def test_supernet_without_distillation_is_followed_by_bare_tokens(tmp_path: Path) -> None:
    body = merged(TINY, {"supernet": {"distillation": False}})
    found = rows(run_until(search_start(body, tmp_path), StopAt("retrain")))
    assert all(row.score == row.scores["consistency_bare"] for row in found)
    assert {frozenset(row.scores) for row in found[:6]} == {
        frozenset({"consistency_bare", "effective_rank", "reconstruction"})
    }
