"""Whom a slimmable network learns from, and where it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from models.foreign.layout import VitLayout
from models.foreign.recognition import Hints, recognise
from models.supernet import Supernet
from models.teacher_weights import build_vit
from service.datasets.builtin import BUILTINS
from service.errors import TeacherInvalid
from service.jobs.resolve import resolve_slimmable
from service.jobs.spec import SlimmableSpec, TeacherSource
from service.teachers.info import TeacherInfo
from tests.channels import RecordingChannel
from tests.published_files import HEADS, Published, dinov2, plain, vit
from tests.stage_runs import TINY_SCALA, merged, search_start
from tests.unit.workers.stages.runs import StopAt, run_until
from tests.unit.workers.stages.slimmable.widths import Run
from workers.protocol import BlobRef, CheckpointMessage, Warn
from workers.stages.run import run_job
from workers.teachers.acquire import acquire
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.streams import torch_stream


def info_of(resource_info: dict[str, Any], digest: str) -> TeacherInfo:
    facts = dict(resource_info)
    return TeacherInfo(id=UUID(int=7), name="toy", digest=digest, architecture=facts.pop("architecture"), info=facts)


def known(published: Published, folder: Path) -> tuple[TeacherInfo, Path]:
    """A registered teacher for colour images of 16 pixels in patches of 4; the digits are grey, with 8 pixels."""
    network = published.network
    state = {name: t for name, t in network.state_dict().items() if not name.startswith("head")}
    recognised = recognise({name: tuple(t.shape) for name, t in state.items()}, Hints(num_heads=4))
    written = write_tensors(folder / "known.safetensors", state, {})
    facts = {
        "architecture": recognised.layout.arch.to_json(),
        "layout": recognised.layout.to_json(),
        "preprocessing": {"mean": [0.5] * 3, "std": [0.25] * 3},
    }
    return info_of(facts, written.sha256), written.path


def test_features_of_a_teacher_are_learnt_without_labels_and_judged_by_a_probe(tmp_path: Path) -> None:
    teacher = known(dinov2(), tmp_path)
    body = merged(TINY_SCALA, {"network": {"patch_size": 2}, "teacher": teacher[0].reference, "constraints": []})
    channel = run_until(search_start(body, tmp_path, teacher=teacher), StopAt("export"))
    outputs = channel.last_checkpoint.state["outputs"]
    assert outputs["teacher"]["digest"] == teacher[0].digest
    assert all(width["accuracy"] > 0.2 for width in outputs["search"]["widths"])  # chance is 0.1
    [supernet] = [r for m in channel.of_type(CheckpointMessage) for r in m.resources]
    assert (supernet.info["classes"], supernet.info["space"]["largest"]["num_classes"]) == ([], 0)


def test_a_registered_classifier_teaches_by_its_decisions(finished: Run, tmp_path: Path) -> None:
    [trained] = finished.announced("teacher")
    digest = finished.result.result["digests"]["teacher"]
    teacher = info_of(trained.info, digest), finished.file("teacher.safetensors")
    body = merged(TINY_SCALA, {"teacher": teacher[0].reference})
    channel = run_until(search_start(body, tmp_path, teacher=teacher), StopAt("search"))
    # The same decisions of the same network, trained here or taken: the same weights.
    assert (
        channel.last_checkpoint.state["outputs"]["supernet"]["digest"]
        == finished.supernet.info["files"]["supernet.safetensors"]
    )


def test_published_weights_are_where_the_whole_network_starts(tmp_path: Path) -> None:
    published = plain()
    teacher, weights = known(published, tmp_path)
    body = {
        **merged(TINY_SCALA, {"init": teacher.reference, "training": {"lr": 1e-9}, "constraints": []}),
        "network": {"img_size": 16, "in_chans": 3},
    }
    spec = resolve_slimmable(SlimmableSpec.model_validate(body), BUILTINS["digits"], init=teacher).spec
    start = search_start({**TINY_SCALA, "constraints": []}, tmp_path)
    start = start.model_copy(
        update={
            "spec": spec.model_dump(mode="json"),
            "init": teacher.to_json(),
            "inputs": [BlobRef(name="init", path=str(weights), sha256=teacher.digest)],
        }
    )
    channel = run_until(start, StopAt("search"))
    assert channel.last_checkpoint.stage == "supernet"
    state, header = read_tensors(Path(start.run_dir) / "supernet.safetensors")
    layout = VitLayout.from_json(teacher.architecture, teacher.info["layout"])
    whole = Supernet(replace(layout.arch, num_classes=10), torch_stream(0))
    load_parameters(dict(whole.named_parameters()), state)
    images = torch.randn(2, 3, 16, 16, generator=torch_stream(0, "x"))
    body_state = {name: t for name, t in published.network.state_dict().items() if not name.startswith("head")}
    with torch.inference_mode():
        expected = build_vit(layout, body_state)(images)
        given = whole.final_norm(whole.tokens(images, whole.largest), whole.largest)[:, 0]
    torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-3)
    assert header["slimmable"]["largest"]["embed_dim"] == 32


def from_a_hub(network: VisionTransformer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub answer with this network, whatever it is asked for."""
    torch.save(network.state_dict(), folder / "hub.pth")
    source = TeacherSource(path="hub.pth", num_heads=HEADS)
    monkeypatch.setattr("workers.stages.teacher.acquire", lambda asked, root: acquire(source, folder))


def test_a_classifier_of_timm_teaches_by_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_a_hub(vit(num_classes=10), tmp_path, monkeypatch)
    body = merged(TINY_SCALA, {"network": {"patch_size": 2}, "teacher": {"timm": "vit_small_patch16_224"}})
    channel = run_until(search_start(body, tmp_path), StopAt("search"))
    [teacher] = [r for m in channel.of_type(CheckpointMessage) for r in m.resources]
    assert teacher.info["architecture"]["num_classes"] == 10
    assert "teacher_resampled" in [warning.code for warning in channel.of_type(Warn)]


def test_a_classifier_of_other_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_a_hub(vit(num_classes=7), tmp_path, monkeypatch)
    body = merged(TINY_SCALA, {"network": {"patch_size": 2}, "teacher": {"timm": "vit_small_patch16_224"}})
    with pytest.raises(TeacherInvalid, match="a head for 7 classes, and the dataset has 10"):
        run_job(search_start(body, tmp_path), RecordingChannel())
