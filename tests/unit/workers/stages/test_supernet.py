from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel, run_until, search_to_export
from workers.protocol import CheckpointMessage, Resource
from workers.stages.search_context import SearchContext
from workers.stages.supernet import load_projector

pytestmark = pytest.mark.usefixtures("every_progress")

SHORT = {"supernet": {"batch_size": 512}, "teacher": {"pretrain": {"batch_size": 512}}}


def trained(supernet: dict[str, Any], folder: Path) -> StoppingChannel:
    """A tiny search up to the end of its supernet."""
    body = merged(merged(TINY, SHORT), {"supernet": supernet})
    return run_until(search_start(body, folder), StopAt("search"))


def files_of(channel: StoppingChannel, stage: str) -> set[str]:
    [last] = [c for c in channel.of_type(CheckpointMessage) if c.stage == stage][-1:]
    return {ref.name for ref in last.files}


def supernet_info(channel: StoppingChannel) -> dict[str, Any]:
    resources: list[Resource] = [r for c in channel.of_type(CheckpointMessage) for r in c.resources]
    [info] = [r.info for r in resources if r.kind == "supernet"]
    return info


def test_teachers_decoder_is_kept_until_the_supernet_has_learnt_from_it(tmp_path: Path) -> None:
    channel = trained({"recon_target": "both", "distillation": False}, tmp_path)
    assert files_of(channel, "teacher") == {"teacher.safetensors", "teacher-decoder.safetensors"}
    left = files_of(channel, "supernet")
    assert "supernet.safetensors" in left
    assert not left & {"teacher-decoder.safetensors", "projector.safetensors"}
    pixels = trained({"distillation": False}, tmp_path / "pixels").last_checkpoint
    one, other = (
        {ref.name: ref.sha256 for ref in checkpoint.files} for checkpoint in (channel.last_checkpoint, pixels)
    )
    assert one["teacher.safetensors"] == other["teacher.safetensors"]
    assert one["supernet.safetensors"] != other["supernet.safetensors"]


@pytest.mark.parametrize(
    "supernet",
    [
        {
            "distill": {
                "positions": "all",
                "layer": "three_quarter",
                "projector": "mlp1",
                "loss": "l1",
                "target_norm": "l2",
            }
        },
        {"distill": {"positions": "masked"}, "reconstruction": False, "sampling": "sandwich", "students": 2},
        {"distill": {"loss": "relation"}, "students": 2},
    ],
    ids=["all", "masked", "relation"],
)
def test_options_lead_to_a_search(supernet: dict[str, Any], tmp_path: Path) -> None:
    body = {**merged(merged(TINY, SHORT), {"supernet": supernet}), "retrain": {"mode": "none"}}
    found = search_to_export(tmp_path, changes=body)
    assert found.rows
    assert all(row.score is not None for row in found.rows.values())


def test_projector_is_read_back_as_it_was_trained(tmp_path: Path) -> None:
    start = search_start(merged(merged(TINY, SHORT), {"supernet": {"distill": {"projector": "mlp1"}}}), tmp_path)
    channel = run_until(start, StopAt("search"))
    ctx = SearchContext(resumed(start, channel.last_checkpoint, tmp_path), StoppingChannel(None))
    projector = load_projector(ctx)
    assert projector is not None
    assert [tuple(p.shape) for p in projector.parameters()] == [(32, 32), (32,), (32, 32), (32,)]
    assert projector(torch.ones(1, 16)).isfinite().all()


def test_supernet_tells_which_networks_it_was_trained_for(tmp_path: Path) -> None:
    assert supernet_info(trained({}, tmp_path / "a"))["trained_for"] == {"sampling": "uniform"}
    channel = trained({"sampling": "window", "window_extremes": 0.5}, tmp_path / "b")
    assert supernet_info(channel)["trained_for"] == {
        "sampling": "window",
        "constraints": [{"metric": "params_m", "max": 0.015}],
        "num_classes": 10,
    }


def test_supernet_of_slimmable_networks_lists_its_widths(tmp_path: Path) -> None:
    body = merged(merged(TINY, SHORT), {"widths": {"smallest": 0.5, "step": 0.25}})
    info = supernet_info(run_until(search_start(body, tmp_path), StopAt("search")))
    assert info["trained_for"] == {"sampling": "sandwich", "widths": [16, 24, 32]}
    assert info["space"]["embed_dim"] == [16, 24, 32]
