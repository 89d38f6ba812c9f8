from __future__ import annotations

import ast
import hashlib
import json
import struct
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor

from models.architecture import Architecture, Pool
from models.export import ExportLoadError, Parity, ParityError, verify_export, write_export
from models.export_record import (
    Accuracy,
    ExportError,
    ExportRecord,
    Interpolation,
    Preprocessing,
    Provenance,
)
from models.extract import StateError, build_timm, extract_state
from models.initialisation import initial_state
from models.slicing import QkvSlicing, count_parameters
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable
from models.supernet import Supernet
from models.templates import model as template
from tests.unit.models.toys import randomise, seeded

# Heads that do not divide the width and differ between blocks: what a plain configuration cannot say.
ARCH = Architecture(
    embed_dim=10,
    depth=2,
    num_heads=(3, 2),
    mlp_ratio=(2.0, 1.5),
    head_dim=6,
    img_size=12,
    patch_size=3,
    in_chans=1,
    num_classes=4,
    norm_eps=1e-5,
)
RECORD = ExportRecord(
    architecture=ARCH,
    classes=("null", "eins", "zwei", "drei – Ä"),
    preprocessing=Preprocessing(size=12, mean=(0.5,), std=(0.25,), interpolation=Interpolation.BICUBIC),
    costs={"params_m": 0.001, "gmacs": 0.002},
    scores={"consistency": -0.25},
    accuracy=Accuracy(val=0.97),
    provenance=Provenance(
        job="jb_1",
        seed=7,
        supernet_digest="aa",
        dataset_digest="bb",
        versions={"torch": "2"},
        retraining={"mode": "scratch"},
    ),
)


def weights(seed: int = 0) -> dict[str, Tensor]:
    state = initial_state(ARCH, seeded(seed))
    randomise(state, seeded(seed + 1))
    return state


def images(batch: int = 40) -> Tensor:
    return torch.randn(batch, 1, 12, 12, generator=seeded(9))


@torch.no_grad()
def logits(state: dict[str, Tensor]) -> Tensor:
    network = build_timm(ARCH).eval()
    network.load_state_dict(state)
    answer: Tensor = network(images())
    return answer


def read_metadata(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    metadata: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata


def test_folder_holds_the_three_files_as_described(tmp_path: Path) -> None:
    files = write_export(tmp_path / "export", weights(), RECORD)
    assert sorted(p.name for p in (tmp_path / "export").iterdir()) == sorted(f.name for f in files)
    assert [f.name for f in files] == ["weights.safetensors", "model.py", "architecture.json"]
    for file in files:
        content = (tmp_path / "export" / file.name).read_bytes()
        assert (file.size_bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_architecture_document_tells_everything(tmp_path: Path) -> None:
    files = write_export(tmp_path, weights(), RECORD)
    document = json.loads((tmp_path / "architecture.json").read_text(encoding="utf-8"))
    genes = {key: document.pop(key) for key in ARCH.to_json()}
    assert Architecture.from_json(genes) == ARCH
    assert document == {
        "classes": ["null", "eins", "zwei", "drei – Ä"],
        "preprocessing": {"size": 12, "mean": [0.5], "std": [0.25], "interpolation": "bicubic", "crop": 1.0},
        "costs": {"params_m": 0.001, "gmacs": 0.002},
        "scores": {"consistency": -0.25},
        "accuracy": {"val": 0.97, "holdout": None},
        "provenance": {
            "job": "jb_1",
            "seed": 7,
            "supernet_digest": "aa",
            "dataset_digest": "bb",
            "versions": {"torch": "2"},
            "retraining": {"mode": "scratch"},
        },
        "files": [{"name": f.name, "size_bytes": f.size_bytes, "sha256": f.sha256} for f in files[:2]],
    }


def test_weights_file_has_one_metadata_key_without_job_or_time(tmp_path: Path) -> None:
    write_export(tmp_path, weights(), RECORD)
    metadata = read_metadata(tmp_path / "weights.safetensors")
    assert list(metadata) == ["vitailor"]
    assert json.loads(metadata["vitailor"]) == {"architecture": ARCH.to_json()}


def test_weights_digest_depends_on_weights_and_architecture_alone(tmp_path: Path) -> None:
    elsewhere = replace(RECORD.provenance, job="jb_2", seed=8)
    first = write_export(tmp_path / "a", weights(), RECORD)
    shuffled = dict(reversed(weights().items()))
    second = write_export(tmp_path / "b", shuffled, replace(RECORD, provenance=elsewhere))
    other = write_export(tmp_path / "c", weights(seed=5), RECORD)
    assert first[:2] == second[:2]
    assert first[0].sha256 != other[0].sha256


def test_loader_is_short_fixed_and_needs_only_torch_and_timm(tmp_path: Path) -> None:
    write_export(tmp_path, weights(), RECORD)
    shipped = (tmp_path / "model.py").read_text(encoding="utf-8")
    assert shipped == Path(template.__file__).read_text(encoding="utf-8")
    assert len(shipped.splitlines()) < 150
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(ast.parse(shipped))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= {"collections", "json", "functools", "pathlib", "typing", "torch", "timm", "safetensors"}


def test_loaded_network_is_in_eval_mode_and_exact(tmp_path: Path) -> None:
    state = weights()
    write_export(tmp_path, state, RECORD)
    network = template.load(tmp_path)
    assert not network.training
    with torch.no_grad():
        assert torch.equal(network(images()), logits(state))


def test_parity_is_proved_in_a_process_without_the_project(tmp_path: Path) -> None:
    state = weights()
    write_export(tmp_path / "export", state, RECORD)
    parity = verify_export(tmp_path / "export", images(), logits(state))
    assert parity.holds
    assert parity.max_abs_diff <= 1e-5
    assert parity.images == 40
    assert parity.params == count_parameters(ARCH)
    assert [p.name for p in tmp_path.iterdir()] == ["export"]


def test_a_width_of_a_distilled_network_with_layer_scale_is_proved_likewise(tmp_path: Path) -> None:
    net = Slimmable(
        largest=replace(ARCH, embed_dim=18, num_heads=(3, 3), pool=Pool.TOKEN, distilled=True, layer_scale=True),
        head_dims=(3, 6),
        qkv=QkvSlicing.CONTIGUOUS,
        isolated=IsolatedActivation.OFFICIAL,
        attention_scale=AttentionScale.FULL,
    )
    arch, cut = net.architecture(4), net.cut(4)
    whole = Supernet(net.largest, seeded(0))
    randomise(whole.state_dict(), seeded(1))
    state = extract_state(whole.state_dict(), net.largest, arch, cut)
    write_export(tmp_path / "export", state, replace(RECORD, architecture=arch))
    with torch.no_grad():
        parity = verify_export(tmp_path / "export", images(), whole(images(), arch, cut))
    assert parity.holds
    assert parity.params == count_parameters(arch)
    assert type(template.load(tmp_path / "export")) is VisionTransformerDistilled


def test_networks_from_before_distillation_and_layer_scale_still_load(tmp_path: Path) -> None:
    state = weights()
    write_export(tmp_path, state, RECORD)
    document = json.loads((tmp_path / "architecture.json").read_text(encoding="utf-8"))
    del document["distilled"], document["layer_scale"]
    (tmp_path / "architecture.json").write_text(json.dumps(document), encoding="utf-8")
    with torch.no_grad():
        assert torch.equal(template.load(tmp_path)(images()), logits(state))


def test_parity_fails_when_one_weight_differs(tmp_path: Path) -> None:
    state = weights()
    expected = logits(state)
    state["head.bias"][2] += 1e-3
    write_export(tmp_path, state, RECORD)
    with pytest.raises(ParityError) as caught:
        verify_export(tmp_path, images(), expected)
    assert caught.value.parity.max_abs_diff == pytest.approx(1e-3, rel=0.01)
    assert not caught.value.parity.holds


def test_answers_that_are_no_numbers_never_agree() -> None:
    assert Parity(max_abs_diff=0.0, max_scaled_diff=1e-5, tolerance=1e-5, images=1, params=1).holds
    assert not Parity(max_abs_diff=nan, max_scaled_diff=nan, tolerance=1e-5, images=1, params=1).holds


def test_export_that_needs_the_project_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import models\n", encoding="utf-8")
    with pytest.raises(ExportLoadError, match="models is not available to an exported network"):
        verify_export(tmp_path, images(), torch.zeros(40, 4))


def test_damaged_export_is_reported_with_its_reason(tmp_path: Path) -> None:
    state = weights()
    write_export(tmp_path, state, RECORD)
    document = json.loads((tmp_path / "architecture.json").read_text(encoding="utf-8"))
    (tmp_path / "architecture.json").write_text(json.dumps(document | {"embed_dim": 11}), encoding="utf-8")
    with pytest.raises(ExportLoadError, match=r"size mismatch for head\.weight"):
        verify_export(tmp_path, images(), logits(state))


def test_export_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import threading\nthreading.Event().wait()\n", encoding="utf-8")
    with pytest.raises(ExportLoadError, match=r"did not answer within 0\.5 s"):
        verify_export(tmp_path, images(), torch.zeros(40, 4), timeout_s=0.5)


def test_proof_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        verify_export(tmp_path, images(0), torch.zeros(0, 4))
    with pytest.raises(ValueError, match="40 images and logits of 39"):
        verify_export(tmp_path, images(), torch.zeros(39, 4))


def test_weights_of_another_network_or_without_numbers_are_refused(tmp_path: Path) -> None:
    state = weights()
    state["norm.bias"] = torch.zeros(3)
    with pytest.raises(StateError, match=r"norm\.bias has shape \(3,\), expected \(10,\)"):
        write_export(tmp_path, state, RECORD)
    state = weights()
    state["norm.bias"][1] = torch.nan
    with pytest.raises(ExportError, match=r"not finite: norm\.bias"):
        write_export(tmp_path, state, RECORD)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("a", "b")}, "2 class names for 4 classes"),
        ({"preprocessing": replace(RECORD.preprocessing, size=16)}, "images of 16 px, the network takes 12"),
        ({"preprocessing": replace(RECORD.preprocessing, mean=(0.0, 0.0))}, "not 1 values each"),
        ({"preprocessing": replace(RECORD.preprocessing, std=(0.0,))}, "std above 0"),
        ({"scores": {"consistency": nan}}, "not finite: consistency"),
        ({"accuracy": Accuracy(holdout=float("inf"))}, "not finite: holdout"),
    ],
    ids=["classes", "size", "channels", "std", "score", "accuracy"],
)
def test_record_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        replace(RECORD, **change)
