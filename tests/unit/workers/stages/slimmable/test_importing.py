"""Released checkpoints become slimmable networks that widths can be taken from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled

from models.slimmable import Slimmable
from service.datasets.builtin import BUILTINS
from service.errors import DatasetInvalid, SupernetInvalid
from tests.channels import RecordingChannel
from tests.published_files import SIZE, state_of, vit
from tests.scala_files import CLASSES, HEADS, WIDTH, scala_checkpoint, scala_logits, scala_state
from workers.protocol import Result, Start
from workers.stages.run import run_job
from workers.stages.slimmable.weights import SlicedWeights


def order(folder: Path, spec: dict[str, Any], kind: str = "supernet_import") -> Start:
    run_dir = folder / kind
    run_dir.mkdir()
    return Start(
        job_id="job_test",
        fence=1,
        kind=kind,
        spec=spec,
        seed=0,
        run_dir=str(run_dir),
        cache_dir=str(folder / "cache"),
        threads=1,
        device="cpu",
        checkpoint_s=1e9,
        lease_s=60,
        dataset=BUILTINS["digits"].to_json() if "dataset" in spec else {},
        import_root=str(folder),
    )


def imported(folder: Path, **spec: Any) -> Result:
    torch.save(scala_checkpoint(), folder / "best_checkpoint.pth")
    return run_job(order(folder, {"path": "best_checkpoint.pth", **spec}), RecordingChannel())


def test_a_checkpoint_becomes_a_supernet_whose_trained_widths_are_offered_unmeasured(tmp_path: Path) -> None:
    result = imported(tmp_path, name="scala-s")
    assert result.supernet is not None
    assert result.supernet.name == "scala-s"
    info = result.supernet.info
    assert [width["head_dim"] for width in info["widths"]] == [4, 6, 8, 10, 12, 14, 16]
    assert all(width["offered"] and width["accuracy"] is None for width in info["widths"])
    assert (info["method"], info["space"]["qkv"], info["classes"]) == ("scala", "contiguous", [])
    assert info["preprocessing"]["mean"] == pytest.approx((0.485, 0.456, 0.406))


@torch.inference_mode()
def test_a_width_of_a_checkpoint_answers_as_the_released_code(tmp_path: Path) -> None:
    result = imported(tmp_path)
    assert result.supernet is not None
    net = Slimmable.from_json(result.supernet.info["space"])
    weights = SlicedWeights.read(net, tmp_path / "supernet_import" / result.artifacts[0].path)
    images = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    for head_dim in net.head_dims:
        expected = scala_logits(scala_state(), images, head_dim * HEADS / WIDTH)
        torch.testing.assert_close(weights.network(head_dim)(images), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(weights.trained(head_dim).answer(images), expected, rtol=1e-5, atol=1e-5)


def test_with_a_dataset_every_width_is_measured_and_judged(tmp_path: Path) -> None:
    state = state_of(vit(VisionTransformerDistilled, embed_dim=WIDTH, num_heads=HEADS, num_classes=10))
    torch.save(scala_checkpoint(state), tmp_path / "c.pth")
    result = run_job(order(tmp_path, {"path": "c.pth", "dataset": {"id": "digits"}}), RecordingChannel())
    assert result.supernet is not None
    info = result.supernet.info
    assert [width["head_dim"] for width in info["widths"]] == list(range(4, 17))
    assert all(0 <= width["accuracy"] < 0.3 for width in info["widths"])  # random weights; chance is 0.1
    assert (info["classes"], info["dataset"], info["measured_on"]) == (
        list("0123456789"),
        None,
        BUILTINS["digits"].digest,
    )


def test_a_dataset_with_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalid, match=f"{CLASSES} classes apart, and the dataset has 10"):
        imported(tmp_path, dataset={"id": "digits"})


@pytest.mark.parametrize("path", ["missing.pth", "../outside.pth"])
def test_a_file_that_is_not_below_the_root_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(SupernetInvalid) as caught:
        run_job(order(tmp_path, {"path": path}), RecordingChannel())
    assert [item.pointer for item in caught.value.errors] == ["/path"]
