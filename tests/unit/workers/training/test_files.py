from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from workers.training.files import (
    TensorFileError,
    describe_file,
    load_parameters,
    read_tensors,
    write_bytes,
    write_tensors,
)

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(3.0)}


def test_round_trip(tmp_path: Path) -> None:
    written = write_tensors(tmp_path / "x", TENSORS, {"step": 7})
    tensors, header = read_tensors(tmp_path / "x")
    assert header == {"step": 7}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert written == describe_file(tmp_path / "x")
    assert written.sha256 == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()


def test_equal_tensors_give_equal_bytes_in_any_order_and_layout(tmp_path: Path) -> None:
    first = write_tensors(tmp_path / "x", TENSORS, {"p": 1, "q": 2})
    strided = torch.arange(6.0).reshape(2, 3).t().contiguous().t()
    second = write_tensors(tmp_path / "y", {"a": TENSORS["a"], "b": strided}, {"q": 2, "p": 1})
    assert first.sha256 == second.sha256


def test_reader_keeps_its_file_while_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    write_bytes(tmp_path / "x", b"old")
    with (tmp_path / "x").open("rb") as reader:
        write_bytes(tmp_path / "x", b"newer")
        assert reader.read() == b"old"
    assert (tmp_path / "x").read_bytes() == b"newer"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("damage", ["cut", "flipped header", "empty", "foreign"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x"
    write_tensors(path, TENSORS, {})
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            data = data[:-4]
        case "flipped header":
            data[9] ^= 0xFF
        case "empty":
            data = bytearray()
        case _:
            data = bytearray(save(TENSORS))
    path.write_bytes(data)
    with pytest.raises(TensorFileError, match=r"x (is damaged|was not written by this program)"):
        read_tensors(path)


@pytest.mark.parametrize(
    "found",
    [{"a": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.zeros(1)}, {"a": torch.zeros(2), "c": torch.zeros(1)}],
)
def test_parameters_must_match(found: dict[str, torch.Tensor]) -> None:
    with pytest.raises(TensorFileError, match="missing, unexpected or misshapen"):
        load_parameters({"a": torch.zeros(2), "b": torch.zeros(1)}, found)
