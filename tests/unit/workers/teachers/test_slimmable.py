"""Released checkpoints of Scala: what is read from them computes what their own code does."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.extract import build_timm, extract_state
from models.foreign.slimmable import Stated
from models.slicing import QkvSlicing
from models.slimmable import AttentionScale, IsolatedActivation
from models.supernet import Supernet
from service.errors import SupernetInvalid
from tests.published_files import SIZE
from tests.scala_files import HEADS, SMALLEST, STEP, WIDTH, scala_checkpoint, scala_logits, scala_state
from workers.teachers.slimmable import read_slimmable
from workers.training.files import load_parameters


def saved(folder: Path, document: Any, name: str = "best_checkpoint.pth") -> Path:
    torch.save(document, folder / name)
    return folder / name


def images() -> torch.Tensor:
    return torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def refused(path: Path, stated: Stated | None = None) -> SupernetInvalid:
    with pytest.raises(SupernetInvalid) as caught:
        read_slimmable(path, stated)
    return caught.value


@pytest.mark.parametrize("distilled", [True, False])
@torch.no_grad()
def test_every_width_computes_what_the_released_code_does(tmp_path: Path, distilled: bool) -> None:
    state = scala_state(distilled=distilled)
    read = read_slimmable(saved(tmp_path, scala_checkpoint(state)))
    whole, x = Supernet(read.net.largest, torch.Generator()), images()
    load_parameters(dict(whole.named_parameters()), read.state)
    for width in read.net.served:
        arch, cut = read.net.architecture(width), read.net.cut(width)
        expected = scala_logits(state, x, width * HEADS / WIDTH)
        torch.testing.assert_close(whole(x, arch, cut), expected, rtol=1e-5, atol=1e-5)
        if read.net.is_trained(width):
            alone = build_timm(arch).eval()
            alone.load_state_dict(extract_state(read.state, read.net.largest, arch, cut))
            torch.testing.assert_close(alone(x), expected, rtol=1e-5, atol=1e-5)


def test_conventions_and_widths_are_those_of_the_file(tmp_path: Path) -> None:
    read = read_slimmable(saved(tmp_path, scala_checkpoint()))
    assert read.net.head_dims == (4, 6, 8, 10, 12, 14, 16)
    assert read.net.qkv is QkvSlicing.CONTIGUOUS
    assert read.net.isolated is IsolatedActivation.OFFICIAL
    assert read.net.attention_scale is AttentionScale.FULL
    assert (read.net.largest.norm_eps, read.net.largest.distilled) == (1e-5, True)
    assert read.found_in == "model"


def test_weights_come_before_their_average(tmp_path: Path) -> None:
    state = scala_state()
    read = read_slimmable(saved(tmp_path, scala_checkpoint(state)))
    assert all(torch.equal(read.state[name], state[name]) for name in state)


def test_the_average_is_read_where_there_is_nothing_else(tmp_path: Path) -> None:
    document = scala_checkpoint()
    average = document["model_ema"]
    del document["model"]
    read = read_slimmable(saved(tmp_path, document))
    assert read.found_in == "model_ema"
    assert all(torch.equal(read.state[name], average[name]) for name in average)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_without_arguments_the_caller_says_what_the_widths_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    (save_file if path.suffix == ".safetensors" else torch.save)(scala_state(), path)  # type: ignore[operator]
    read = read_slimmable(path, Stated(smallest=SMALLEST, step=STEP, num_heads=HEADS))
    assert read.net == read_slimmable(saved(tmp_path, scala_checkpoint())).net
    error = refused(path, Stated(num_heads=HEADS))
    assert [item.pointer for item in error.errors] == ["/smallest", "/step"]
    assert "state it" in error.detail


def test_what_is_stated_must_agree_with_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, scala_checkpoint())
    [item] = refused(path, Stated(smallest=0.5)).errors
    assert (item.pointer, item.detail) == (
        "/smallest",
        "found 0.5, allowed is 0.25, as the file says (smallest_ratio); leave it out",
    )
    assert read_slimmable(path, Stated(smallest=SMALLEST, step=STEP)).net.smallest == 4


def test_the_step_has_another_name_in_earlier_checkpoints(tmp_path: Path) -> None:
    path = saved(tmp_path, scala_checkpoint(granularity=..., discrete_ratio=0.25))
    assert read_slimmable(path).net.head_dims == (4, 8, 12, 16)


def test_heads_have_64_channels_unless_somebody_knows_better(tmp_path: Path) -> None:
    error = refused(saved(tmp_path, scala_checkpoint(num_heads=...)))
    assert [item.pointer for item in error.errors] == ["/num_heads"]
    so_tiny = scala_checkpoint(num_heads=..., model="deit_so_tiny_patch16_224_scala")
    assert read_slimmable(saved(tmp_path, so_tiny)).net.largest.num_heads == (3, 3)
    assert [item.pointer for item in refused(tmp_path / "best_checkpoint.pth", Stated(num_heads=5)).errors] == [
        "/num_heads"
    ]


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"smallest_ratio": 0.5}, "/smallest"),  # tokens and blocks of the smallest would be cut from different ends
        ({"smallest_ratio": "wide " * 99}, "/smallest"),
        ({"smallest_ratio": float("nan")}, "/smallest"),
        ({"granularity": 0}, "/step"),
        ({"granularity": 1 / 64}, "/step"),  # a quarter of a channel
        ({"largest_ratio": 0.75}, "/largest_ratio"),
    ],
)
def test_widths_that_no_network_here_has_are_refused(
    tmp_path: Path, arguments: dict[str, object], pointer: str
) -> None:
    error = refused(saved(tmp_path, scala_checkpoint(**arguments)))
    assert pointer in [item.pointer for item in error.errors]
    assert len(error.detail) < 500


def test_mlps_that_vanish_at_the_smallest_width_are_refused(tmp_path: Path) -> None:
    state = scala_state()
    for i in range(2):
        names = [f"blocks.{i}.mlp.fc1.weight", f"blocks.{i}.mlp.fc1.bias", f"blocks.{i}.mlp.fc2.weight"]
        state |= {name: state[name][..., :2] if "fc2" in name else state[name][:2] for name in names}
    error = refused(saved(tmp_path, scala_checkpoint(state)))
    assert [item.pointer for item in error.errors] == ["/smallest"]
    assert "MLPs keep a channel" in error.detail


def test_without_a_distillation_token_any_smallest_width_is_read(tmp_path: Path) -> None:
    document = scala_checkpoint(scala_state(distilled=False), smallest_ratio=0.5)
    assert read_slimmable(saved(tmp_path, document)).net.head_dims == (8, 10, 12, 14, 16)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_what_training_put_before_the_names_is_taken_off(tmp_path: Path, prefix: str) -> None:
    state = scala_state()
    document = scala_checkpoint({f"{prefix}{name}": tensor for name, tensor in state.items()})
    assert read_slimmable(saved(tmp_path, document)).state.keys() == state.keys()


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    state = {name: tensor.half() for name, tensor in scala_state().items()}
    read = read_slimmable(saved(tmp_path, scala_checkpoint(state)))
    assert all(torch.equal(read.state[name], state[name].float()) for name in state)


def test_every_key_at_fault_is_told(tmp_path: Path) -> None:
    state = scala_state()
    del state["norm.bias"]
    state["blocks.0.ls1.gamma"] = torch.ones(WIDTH)
    state["blocks.1.attn.proj.bias"] = torch.ones(3)
    state["head.weight"] = state["head.weight"][:4]
    error = refused(saved(tmp_path, scala_checkpoint(state)))
    keys = error.extra["keys"]
    assert (keys["missing"], keys["unexpected"]) == (["norm.bias"], ["blocks.0.ls1.gamma"])
    assert {wrong["name"] for wrong in keys["misshapen"]} == {"blocks.1.attn.proj.bias", "head.weight"}


@pytest.mark.parametrize(
    "gone", ["head.bias", "pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "blocks.", "head_dist."]
)
def test_files_that_lack_a_part_are_refused_by_its_name(tmp_path: Path, gone: str) -> None:
    state = {name: tensor for name, tensor in scala_state().items() if not name.startswith(gone)}
    if gone == "blocks.0.mlp.fc1.weight":  # the second block still tells the size
        assert refused(saved(tmp_path, scala_checkpoint(state))).extra["keys"]["missing"] == [gone]
    else:
        assert re.escape(gone.rstrip(".")) in re.escape(refused(saved(tmp_path, scala_checkpoint(state))).detail)


class _Bomb:
    """What a pickle with code in it looks like."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._folder),)


@pytest.mark.parametrize("place", ["args", "extra", "model"])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, place: str) -> None:
    document = scala_checkpoint()
    if place == "args":
        document["args"].device = _Bomb(tmp_path / "owned")
    elif place == "model":
        document["model"] = {**document["model"], "bomb": _Bomb(tmp_path / "owned")}
    else:
        document["extra"] = _Bomb(tmp_path / "owned")
    error = refused(saved(tmp_path, document))
    assert "posix.mkdir, which is not built" in error.detail
    assert [item.pointer for item in error.errors] == ["/path"]
    assert not (tmp_path / "owned").exists()


def test_numbers_that_nothing_can_be_computed_with_are_refused(tmp_path: Path) -> None:
    state = scala_state()
    state["norm.bias"][0] = torch.nan
    assert "NaN or infinity: norm.bias" in refused(saved(tmp_path, scala_checkpoint(state))).detail


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.pth").write_text("no weights\n" * 50)
    for path in (tmp_path / "letter.pth", tmp_path, tmp_path / "nothing.pth"):
        error = refused(path)
        assert "cannot be read" in error.detail
        assert [item.pointer for item in error.errors] == ["/path"]
