"""Files of strangers: read when they are weights, refused when they are anything else."""

from __future__ import annotations

import argparse
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from service.errors import TeacherInvalid
from tests.published_files import State, mae_full, plain, state_of, vit
from workers.teachers.reading import check_values, read_weights


def saved(folder: Path, document: Any, name: str = "weights.pth") -> Path:
    torch.save(document, folder / name)
    return folder / name


def equal(found: State, expected: State) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    "keys",
    [[], ["model"], ["state_dict"], ["teacher"], ["student"], ["module"], ["model", "state_dict"]],
    ids=".".join,
)
def test_state_is_found_under_the_usual_keys(tmp_path: Path, keys: list[str]) -> None:
    state: Any = plain().state
    for key in reversed(keys):
        state = {key: state, "epoch": 3}
    found = read_weights(saved(tmp_path, state))
    assert equal(found.tensors, plain().state)
    assert found.place == tuple(keys)


def test_training_checkpoint_with_arguments_and_optimizer_is_read(tmp_path: Path) -> None:
    network = vit()
    optimizer = torch.optim.AdamW(network.parameters())
    document = {
        "model": state_of(network),
        "optimizer": optimizer.state_dict(),
        "epoch": 399,
        "args": argparse.Namespace(model="mae_vit_base_patch16", lr=1e-3),
    }
    assert equal(read_weights(saved(tmp_path, document)).tensors, state_of(network))


def test_averaged_weights_come_first_and_teacher_before_student(tmp_path: Path) -> None:
    first, second = state_of(vit()), plain().state
    assert equal(read_weights(saved(tmp_path, {"model": second, "model_ema": first})).tensors, first)
    assert equal(read_weights(saved(tmp_path, {"student": second, "teacher": first})).tensors, first)


def test_safetensors_and_old_torch_files_are_read(tmp_path: Path) -> None:
    state = mae_full().state
    save_file(state, tmp_path / "weights.safetensors")
    assert equal(read_weights(tmp_path / "weights.safetensors").tensors, state)
    torch.save({"model": state}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert equal(read_weights(tmp_path / "old.pth").tensors, state)


class _Bomb:
    """What a pickle with code in it looks like: reading it in the ordinary way makes a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


@pytest.mark.parametrize("name", ["bomb.pth", "bomb.pt", "bomb.bin"])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, {"model": plain().state, "extra": _Bomb(tmp_path / "owned")}, name)
    with pytest.raises(TeacherInvalid, match=r"posix\.mkdir, which is not built"):
        read_weights(path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_plain_pickle_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "bomb.pth").write_bytes(pickle.dumps(_Bomb(tmp_path / "owned")))
    with pytest.raises(TeacherInvalid):
        read_weights(tmp_path / "bomb.pth")
    assert not (tmp_path / "owned").exists()


def _cut(source: Path, target: Path) -> None:
    data = source.read_bytes()
    target.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, name: str) -> None:
    whole, broken = tmp_path / name, tmp_path / f"broken-{name}"
    (save_file if whole.suffix == ".safetensors" else torch.save)(plain().state, whole)  # type: ignore[operator]
    _cut(whole, broken)
    with pytest.raises(TeacherInvalid, match="cannot be read"):
        read_weights(broken)
    broken.write_text("a letter and no weights\n" * 50)
    with pytest.raises(TeacherInvalid, match="cannot be read"):
        read_weights(broken)
    broken.write_bytes(b"")
    with pytest.raises(TeacherInvalid, match="cannot be read"):
        read_weights(broken)


def test_compressed_records_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1_000_000)}, tmp_path / "weights.pth")
    packed = zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "weights.pth") as whole, packed as archive:
        for record in whole.namelist():
            archive.writestr(record, whole.read(record))
    with pytest.raises(TeacherInvalid, match="compressed"):
        read_weights(tmp_path / "bomb.pth")


@pytest.mark.parametrize(
    ("document", "why"),
    [([1, 2], "a list where"), ({"epoch": 3}, "no tensors, only epoch"), ({}, "nothing"), ("x", "a str where")],
    ids=["list", "numbers", "empty", "text"],
)
def test_files_without_tensors_are_refused(tmp_path: Path, document: Any, why: str) -> None:
    with pytest.raises(TeacherInvalid, match=why):
        read_weights(saved(tmp_path, document))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pth")
    for path in (tmp_path, tmp_path / "pipe.pth"):
        with pytest.raises(TeacherInvalid, match="no plain file"):
            read_weights(path)


def test_numbers_that_nothing_can_be_computed_with_are_refused() -> None:
    with pytest.raises(TeacherInvalid, match=r"NaN or infinity: norm\.bias"):
        check_values({"norm.bias": torch.tensor([1.0, torch.nan]), "norm.weight": torch.ones(2)})
    with pytest.raises(TeacherInvalid, match="ordinary floating-point numbers: a, b"):
        check_values({"a": torch.ones(2, dtype=torch.int64), "b": torch.eye(2).to_sparse(), "c": torch.ones(1).half()})


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": torch.zeros(1).expand(10**6, 10**6)},
        dict.fromkeys("abc", torch.zeros(100)),
    ],
    ids=["repeated", "shared"],
)
def test_small_files_that_unfold_to_large_networks_are_refused(tmp_path: Path, tensors: State) -> None:
    found = read_weights(saved(tmp_path, tensors)).tensors
    with pytest.raises(TeacherInvalid, match=r"unfold to [\d,]+ bytes"):
        check_values(found)


def test_parts_of_one_tensor_are_ordinary(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    check_values(read_weights(saved(tmp_path, {"a": whole[:5], "b": whole[5:]})).tensors)
