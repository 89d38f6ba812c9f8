from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.classifier import FrozenClassifier
from models.foreign.layout import VitLayout
from models.teacher import FrozenTeacher
from models.teacher_view import ImageForm
from service.errors import TeacherInvalid
from service.teachers.info import TeacherInfo
from tests.channels import RecordingChannel
from tests.published_files import (
    GRID,
    HEADS,
    SIZE,
    Published,
    deit_distilled,
    dinov2_huggingface,
    mae_encoder,
    mae_finetuned,
    mae_full,
    plain,
)
from tests.stage_runs import TINY, merged, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, run_until
from workers.protocol import Candidates, CheckpointMessage, Progress, Result, Start, Warn
from workers.stages.run import run_job


def import_start(tmp_path: Path, **source: Any) -> Start:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (tmp_path / "root").mkdir(exist_ok=True)
    return Start(
        job_id="job_test",
        fence=1,
        kind="teacher_import",
        spec={"name": None, "source": source},
        seed=0,
        run_dir=str(run_dir),
        cache_dir=str(tmp_path / "cache"),
        threads=1,
        device="cpu",
        checkpoint_s=15,
        lease_s=60,
        dataset={},
        import_root=str(tmp_path / "root"),
    )


def imported(tmp_path: Path, state: Any, **source: Any) -> tuple[Result, list[Warn], Path]:
    start = import_start(tmp_path, path="teacher.pth", num_heads=HEADS, **source)
    torch.save({"model": state}, tmp_path / "root/teacher.pth")
    channel = RecordingChannel()
    return run_job(start, channel), channel.of_type(Warn), Path(start.run_dir)


def test_import_ends_with_the_weights_and_what_they_are(tmp_path: Path) -> None:
    published = mae_full()
    result, warnings, run_dir = imported(tmp_path, published.state)
    [artifact] = result.artifacts
    data = (run_dir / artifact.path).read_bytes()
    assert (artifact.kind, artifact.sha256) == ("teacher", hashlib.sha256(data).hexdigest())
    written = load_file(run_dir / artifact.path)
    assert torch.equal(written["blocks.0.attn.qkv.weight"], published.state["blocks.0.attn.qkv.weight"])
    assert not any(name.startswith("decoder") for name in written)
    assert result.teacher is not None
    info = result.teacher.info
    assert (info["kind"], info["found_in"], info["source"]) == ("mae", "model", {"path": "teacher.pth"})
    assert info["licence"]["commercial_use"] is False
    assert (info["preprocessing"]["mean"], set(info["dropped"])) == ([0.485, 0.456, 0.406], published.dropped)
    assert [warning.code for warning in warnings] == ["teacher_licence"]
    assert "CC-BY-NC-4.0" in warnings[0].detail


@torch.inference_mode()
def test_a_classifier_keeps_its_head_and_answers_with_it(tmp_path: Path) -> None:
    published = plain()
    result, _, run_dir = imported(tmp_path, published.state)
    assert result.teacher is not None
    info = result.teacher.info
    assert (info["architecture"]["num_classes"], info["dropped"]) == (10, [])
    layout = VitLayout.from_json(info["architecture"], info["layout"])
    form = ImageForm(size=SIZE, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    path = run_dir / result.artifacts[0].path
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    teacher = FrozenTeacher.for_student(path, layout, form, form, GRID, headed=True)
    torch.testing.assert_close(FrozenClassifier.of(teacher).logits(images), published.network(images))
    # Who asks for features alone gets a network without it.
    assert FrozenTeacher.load(path, layout).network.num_classes == 0


@pytest.mark.parametrize("published", [mae_finetuned, deit_distilled], ids=lambda make: make.__name__)
def test_heads_that_read_something_else_are_put_aside(published: Callable[[], Published], tmp_path: Path) -> None:
    result, _, _ = imported(tmp_path, published().state)
    assert result.teacher is not None
    assert result.teacher.info["architecture"]["num_classes"] == 0
    assert set(result.teacher.info["dropped"]) == published().dropped


def test_equal_weights_give_equal_digests_whatever_their_names_were(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    plain_names, _, _ = imported(tmp_path / "a", plain().state)
    wrapped, _, _ = imported(tmp_path / "b", {f"module.{name}": t for name, t in plain().state.items()})
    assert plain_names.result["digest"] == wrapped.result["digest"]


def test_maes_encoder_is_told_by_its_fixed_positions(tmp_path: Path) -> None:
    result, warnings, _ = imported(tmp_path, mae_encoder().state)
    assert result.result["kind"] == "mae_encoder"
    assert [warning.code for warning in warnings] == ["teacher_licence"]


def test_what_the_user_knows_wins(tmp_path: Path) -> None:
    result, warnings, _ = imported(
        tmp_path, mae_encoder().state, licence="our own", mean=[0.5] * 3, std=[0.25] * 3, norm_eps=1e-5
    )
    assert result.teacher is not None
    info = result.teacher.info
    assert (info["licence"]["name"], info["preprocessing"]["std"], warnings) == ("our own", [0.25] * 3, [])
    assert info["architecture"]["norm_eps"] == 1e-5


def test_every_key_at_fault_is_in_the_error(tmp_path: Path) -> None:
    state = plain().state | {"rope.freqs": torch.ones(3)}
    del state["norm.bias"]
    with pytest.raises(TeacherInvalid) as caught:
        imported(tmp_path, state)
    keys = caught.value.to_json()["keys"]
    assert (keys["missing"], keys["unexpected"]) == (["norm.bias"], ["rope.freqs"])


def test_path_outside_the_root_is_refused(tmp_path: Path) -> None:
    save_file(plain().state, tmp_path / "secret.safetensors")
    with pytest.raises(TeacherInvalid, match="leaves the import root"):
        run_job(import_start(tmp_path, path="../secret.safetensors", num_heads=HEADS), RecordingChannel())


def test_wrong_number_of_channel_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TeacherInvalid, match="3 channels, found are 1"):
        imported(tmp_path, plain().state, mean=[0.5], std=[0.5])


def registered(tmp_path: Path) -> tuple[TeacherInfo, Path]:
    """A teacher for colour, 16 pixels, patches of 4; the digits are grey, 8 pixels, patches of 2."""
    result, _, run_dir = imported(tmp_path, dinov2_huggingface(4).state)
    assert result.teacher is not None
    facts = dict(result.teacher.info)
    teacher = TeacherInfo(
        id=UUID(int=7),
        name="toy",
        digest=result.result["digest"],
        architecture=facts.pop("architecture"),
        info=facts,
    )
    return teacher, run_dir / "teacher.safetensors"


@pytest.mark.usefixtures("proofs_here")
def test_search_learns_from_a_registered_teacher_of_another_size(tmp_path: Path) -> None:
    teacher, weights = registered(tmp_path)
    body = merged(TINY, {"teacher": {"pretrain": None, "id": teacher.reference}, "retrain": {"mode": "none"}})
    start = search_start(body, tmp_path / "search", teacher=(teacher, weights))
    channel = RecordingChannel()
    found = run_job(start, channel)
    assert found.result["digests"]["teacher"] == teacher.digest
    assert channel.of_type(CheckpointMessage)[-1].state["outputs"]["teacher"]["id"] == teacher.reference
    assert not any(resource.kind == "teacher" for m in channel.of_type(CheckpointMessage) for resource in m.resources)
    [weights] = [artifact.sha256 for artifact in found.artifacts if artifact.kind == "teacher"]
    assert weights == teacher.digest
    scores = [row.score for batch in channel.of_type(Candidates) for row in batch.rows]
    assert len(set(scores)) > 1
    assert any(message.eta_seconds for message in channel.of_type(Progress))


@pytest.mark.usefixtures("every_progress")
def test_interrupted_search_goes_on_with_its_teacher(tmp_path: Path) -> None:
    teacher = registered(tmp_path)
    body = merged(TINY, {"teacher": {"pretrain": None, "id": teacher[0].reference}})
    digests = []
    for stops in ([], [StopAt("supernet", 0.5)]):
        folder = tmp_path / f"{len(stops)} stops"
        start = search_start(body, folder, teacher=teacher)
        for stop in stops:
            start = resumed(start, run_until(start, stop).last_checkpoint, folder)
            start = start.model_copy(update={"inputs": []})  # the file is the job's own by now
        last = run_until(start, StopAt("search")).last_checkpoint
        digests.append({ref.name: ref.sha256 for ref in last.files})
    assert digests[0] == digests[1]
    assert digests[0]["teacher.safetensors"] == teacher[0].digest
