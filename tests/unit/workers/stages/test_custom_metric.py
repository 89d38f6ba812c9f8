from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import PluginFailed, ValidationFailed
from tests.channels import RecordingChannel
from tests.plugins import install, install_example
from tests.stage_runs import TINY, merged, search_start
from workers.protocol import Candidates
from workers.stages.run import run_job


@pytest.mark.usefixtures("proofs_here")
def test_a_search_follows_the_metric_of_a_package_in_its_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(tmp_path / "site", monkeypatch)
    asked = merged(
        {**TINY, "space": "shallow", "constraints": []}, {"search": {"metric": "feature_spread", "generations": 1}}
    )
    channel = RecordingChannel()
    result = run_job(search_start(asked, tmp_path), channel).result
    rows = [row for message in channel.of_type(Candidates) for row in message.rows]
    assert all(row.score == row.scores["feature_spread"] and row.score > 0 for row in rows)
    assert result["best"]["score"] in [row.score for row in rows]
    assert "feature_spread" in [row["name"] for row in result["rank_correlation"]["measures"]]


def test_an_unknown_metric_is_refused_with_all_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_example(tmp_path / "site", monkeypatch)
    with pytest.raises(ValidationFailed) as refused:
        search_start(merged(TINY, {"search": {"metric": "beauty"}}), tmp_path)
    (error,) = refused.value.errors
    assert (error.pointer, error.code) == ("/search/metric", "unknown_metric")
    assert error.allowed == [
        *("consistency", "consistency_bare", "reconstruction", "feature", "effective_rank"),
        *("fused", "params", "width", "random", "feature_spread"),
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module\n", "failed: ModuleNotFoundError when it was imported"),
        ("def make(context):\n    return lambda arch: 1 / 0\n", "ZeroDivisionError when it scored"),
    ],
)
def test_a_metric_that_does_not_work_fails_the_job_by_name(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"faulty_{len(code)}"  # a module is imported once in a process
    install(tmp_path / "site", monkeypatch, name, code, {"vitailor.metrics": {"mine": f"{name}:make"}})
    with pytest.raises(PluginFailed, match=f"'mine'.*{message}"):
        run_job(search_start(merged(TINY, {"search": {"metric": "mine"}}), tmp_path), RecordingChannel())
