"""A search that takes over what an earlier one has trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search.space import Space
from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import resolve_search
from service.jobs.spec import SearchSpec
from service.supernets.info import SupernetInfo
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until
from workers.protocol import BlobRef, CandidateRow, Candidates, CheckpointMessage, Progress, Start
from workers.stages.search_ledger import SEARCH_FILE

AFTER_SEARCH = StopAt("retrain")
BODY: Mapping[str, Any] = merged(TINY, {"search": {"baseline": "none"}, "retrain": {"mode": "none"}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Start, StoppingChannel]:
    start = search_start(BODY, tmp_path_factory.mktemp("trained"))
    return start, run_until(start, AFTER_SEARCH)


def info(channel: StoppingChannel) -> SupernetInfo:
    [message] = [
        message
        for message in channel.of_type(CheckpointMessage)
        if any(resource.kind == "supernet" for resource in message.resources)
    ]
    [told] = [resource.info for resource in message.resources]
    return SupernetInfo(
        reference="sn_1",
        method="masktas",
        space=told["space"],
        dataset=told["dataset"],
        spec=told["spec"],
        files=told["files"],
        outputs=told["outputs"],
        trained_for=told["trained_for"],
    )


def rows(channel: StoppingChannel) -> list[CandidateRow]:
    return [row for message in channel.of_type(Candidates) for row in message.rows]


def taking_over(trained: tuple[Start, StoppingChannel], folder: Path) -> Start:
    """The order of a search with the same body that starts from the trained supernet."""
    before, channel = trained
    found = info(channel)
    start = search_start(BODY, folder)
    refs = channel.of_type(CheckpointMessage)[-1].files
    paths = {ref.name: Path(before.run_dir) / ref.path for ref in refs}
    inputs = [BlobRef(name=name, path=str(paths[name]), sha256=sha256) for name, sha256 in found.files.items()]
    return start.model_copy(update={"inputs": inputs, "adopted": dict(found.outputs)})


def test_the_weights_come_over_and_score_as_they_did(trained: tuple[Start, StoppingChannel], tmp_path: Path) -> None:
    channel = run_until(taking_over(trained, tmp_path), AFTER_SEARCH)
    assert rows(channel) == rows(trained[1])
    kept = {ref.name: ref.sha256 for ref in channel.last_checkpoint.files if ref.name != SEARCH_FILE}
    assert kept == info(trained[1]).files
    trained_here = [m for m in channel.of_type(Progress) if m.stage in ("teacher", "supernet") and "step" in m.detail]
    assert trained_here == []


@pytest.mark.usefixtures("every_progress")
def test_an_interrupted_search_goes_on_without_the_inputs(
    trained: tuple[Start, StoppingChannel], tmp_path: Path
) -> None:
    start = taking_over(trained, tmp_path)
    first = run_until(start, StopAt("search", 0.5))
    second = run_until(resumed(start, first.last_checkpoint, tmp_path).model_copy(update={"inputs": []}), AFTER_SEARCH)
    assert {row.n: row for row in [*rows(first), *rows(second)]} == {row.n: row for row in rows(trained[1])}


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"space": "micro"}, "/space"),
        ({"supernet": {"epochs": 2}}, "/supernet"),
        ({"teacher": {"pretrain": {"epochs": 2}}}, "/teacher"),
        ({"dataset": {"id": "digits", "val_fraction": 0.2}}, "/dataset/val_fraction"),
        ({"dataset": {"id": "digits", "holdout_fraction": 0.3}}, "/dataset/holdout_fraction"),
    ],
)
def test_what_contradicts_the_supernet_is_refused(
    trained: tuple[Start, StoppingChannel], changes: dict[str, Any], pointer: str
) -> None:
    body = {"method": "masktas", "dataset": "digits", "warm_start": "sn_1", **changes}
    with pytest.raises(ValidationFailed) as caught:
        resolve_search(SearchSpec.model_validate(body), BUILTINS["digits"], info(trained[1]))
    assert [item.pointer for item in caught.value.errors] == [pointer]


def test_a_filled_search_of_a_trained_supernet_is_a_valid_body(trained: tuple[Start, StoppingChannel]) -> None:
    warm = info(trained[1])
    body = {"method": "masktas", "dataset": "digits", "warm_start": "sn_1"}
    resolved = resolve_search(SearchSpec.model_validate(body), BUILTINS["digits"], warm)
    assert resolved.space == Space.from_json(warm.space)
    assert resolved.spec.supernet.epochs == 1
    assert resolve_search(resolved.spec, BUILTINS["digits"], warm).spec == resolved.spec


@pytest.mark.parametrize("changes", [{"digest": "f" * 64}, {"val_images": 180}], ids=["another", "official split"])
def test_fractions_that_decide_nothing_may_differ(
    changes: dict[str, Any], trained: tuple[Start, StoppingChannel]
) -> None:
    body = {"method": "masktas", "dataset": {"id": "digits", "val_fraction": 0.2}, "warm_start": "sn_1"}
    other = replace(BUILTINS["digits"], **changes)
    assert resolve_search(SearchSpec.model_validate(body), other, info(trained[1])).spec.dataset.val_fraction == 0.2


def test_a_search_beyond_the_window_of_the_training_is_warned_of(tmp_path: Path) -> None:
    body = merged(BODY, {"supernet": {"sampling": "window", "batch_size": 512}})
    warm = info(run_until(search_start(body, tmp_path), StopAt("search")))

    def warned(max_params_m: float) -> list[str]:
        limits = {"constraints": [{"metric": "params_m", "max": max_params_m}], "warm_start": "sn_1"}
        asked = {key: value for key, value in BODY.items() if key not in ("teacher", "space", "supernet")}
        resolved = resolve_search(SearchSpec.model_validate({**asked, **limits}), BUILTINS["digits"], warm)
        return [item.code for item in resolved.warnings]

    assert warned(0.015) == []
    assert warned(0.013) == ["trained_for_other_limits"]
