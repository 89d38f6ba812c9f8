from __future__ import annotations

import pytest
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from models.foreign.layout import Activation, VitLayout
from models.foreign.licences import of_kind, stated
from models.foreign.recognition import HeadsUnknown, Hints, NotRecognised, Recognised, recognise
from models.foreign.transforms import Kind
from models.teacher import FrozenTeacher
from models.teacher_weights import build_vit, convert, has_fixed_positions, on_grid
from tests.published_files import (
    DEPTH,
    GRID,
    HEADS,
    PATCH,
    PUBLISHED,
    SIZE,
    WIDTH,
    Published,
    State,
    clip,
    dinov2,
    mae_encoder,
    mae_full,
    plain,
    random,
    vit,
)

HINTS = Hints(num_heads=HEADS)


def shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def understood(state: State, hints: Hints = HINTS) -> Recognised:
    return recognise(shapes(state), hints)


def features(state: State, hints: Hints = HINTS) -> Tensor:
    """What the recognised network gives after each block."""
    found = understood(state, hints)
    teacher = FrozenTeacher(build_vit(found.layout, convert(state, found.entries)))
    return torch.stack(teacher.features(images(), None, after=range(1, DEPTH + 1)))


def images() -> Tensor:
    return random(2, 3, SIZE, SIZE)


@torch.no_grad()
def expected(published: Published) -> Tensor:
    """What timm's network gives after each block: class token, then patches."""
    found = published.network.forward_intermediates(
        images(), return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    return torch.stack([torch.cat((prefix[:, :1], patches), dim=1) for patches, prefix in found])


@pytest.mark.parametrize("name", PUBLISHED)
def test_features_of_a_published_layout_equal_timms(name: str) -> None:
    published = PUBLISHED[name]()
    torch.testing.assert_close(features(published.state), expected(published), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_layout_is_recognised_by_its_keys(name: str) -> None:
    published = PUBLISHED[name]()
    found = understood(published.state)
    # The one thing that keys do not show: MAE's encoder has the keys of any ViT.
    assert found.findings.kind == ("vit" if published.kind == "mae_encoder" else published.kind)
    assert set(found.findings.dropped) == published.dropped
    arch = found.layout.arch
    sizes = (arch.embed_dim, arch.depth, arch.num_heads[0], arch.patch_size, found.layout.grid, arch.in_chans)
    assert sizes == (WIDTH, DEPTH, HEADS, PATCH, GRID, 3)


def test_clips_activation_and_epsilon_come_from_hints() -> None:
    published = clip()
    hints = Hints(num_heads=HEADS, norm_eps=1e-5)
    torch.testing.assert_close(features(published.state, hints), expected(published), rtol=0, atol=1e-5)
    assert "quick_gelu" in understood(published.state).findings.notes[0]
    stated_activation = Hints(num_heads=HEADS, activation=Activation.QUICK_GELU)
    assert understood(published.state, stated_activation).layout.activation is Activation.QUICK_GELU


@pytest.mark.parametrize(
    "prefix",
    ["module.", "backbone.", "encoder.", "model.", "_orig_mod.", "module._orig_mod.", "model.encoder.", "teacher."],
)
@pytest.mark.parametrize("name", ["mae-full", "dinov2-huggingface"])
def test_prefixes_of_training_code_are_taken_off(name: str, prefix: str) -> None:
    published = PUBLISHED[name]()
    wrapped = {prefix + key: tensor for key, tensor in published.state.items()}
    torch.testing.assert_close(features(wrapped), expected(published), rtol=0, atol=1e-5)


def test_compiled_and_checkpointed_blocks_keep_their_names() -> None:
    published = plain()
    state = {key.replace("blocks.1.", "blocks.1._orig_mod."): tensor for key, tensor in published.state.items()}
    assert torch.equal(features(state), features(published.state))


def test_of_teacher_and_student_in_one_file_the_teacher_is_taken() -> None:
    published, other = dinov2(), {name: tensor + 1 for name, tensor in dinov2().state.items()}
    state = {f"student.backbone.{name}": tensor for name, tensor in other.items()}
    state |= {f"teacher.backbone.{name}": tensor for name, tensor in published.state.items()}
    state |= {f"{who}.dino_head.last_layer.weight": random(3, 3) for who in ("student", "teacher")}
    torch.testing.assert_close(features(state), expected(published), rtol=0, atol=1e-5)


def test_half_precision_files_are_computed_with_in_full() -> None:
    state = {name: tensor.half() for name, tensor in plain().state.items()}
    found = understood(state)
    assert {tensor.dtype for tensor in convert(state, found.entries).values()} == {torch.float32}


def test_every_key_at_fault_is_listed() -> None:
    state = mae_full().state
    del state["blocks.1.attn.qkv.bias"], state["norm.bias"]
    state["blocks.0.mlp.fc1.weight"] = random(7, WIDTH)
    state["rel_pos_bias"] = random(3)
    state["quantizer.weight"] = random(3)
    with pytest.raises(NotRecognised) as caught:
        understood(state)
    faults = caught.value.faults
    assert set(faults.missing) == {"blocks.1.attn.qkv.bias", "norm.bias"}
    assert set(faults.unexpected) == {"rel_pos_bias", "quantizer.weight"}
    assert "quantizer.weight" in str(caught.value)
    assert {m.name for m in faults.misshapen} >= {"blocks.0.mlp.fc2.weight"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cls_token": None}, "class token"),
        ({"pos_embed": None}, "pos_embed"),
        ({"patch_embed.proj.weight": None}, "patch_embed.proj.weight"),
        ({"patch_embed.proj.weight": random(WIDTH, 3, 4, 8)}, "square patches"),
        ({"patch_embed.proj.weight": random(WIDTH, 2, 4, 4)}, "in_chans"),
        ({"patch_embed.proj.weight": random(WIDTH, 48)}, "patch_embed.proj.weight"),
        ({"pos_embed": random(1, 13, WIDTH)}, "13 rows are no square grid"),
        ({"pos_embed": random(5)}, "no square grid"),
    ],
    ids=["class-token", "positions", "patches", "oblong-patches", "two-channels", "linear-patches", "oblong", "vector"],
)
def test_network_of_another_kind_is_refused_with_the_reason(change: dict[str, Tensor | None], named: str) -> None:
    state = {key: tensor for key, tensor in (plain().state | change).items() if tensor is not None}
    with pytest.raises(NotRecognised, match=named):
        understood(state)


@pytest.mark.parametrize(
    "names",
    [["a"], [], ["blocks.0.norm1.weight"], ["patch_embed.proj.weight", "cls_token", "pos_embed", "blocks.9999.x"]],
    ids=["stranger", "nothing", "block", "far-block"],
)
def test_nonsense_is_refused(names: list[str]) -> None:
    odd = dict.fromkeys(names, (0,)) | ({"patch_embed.proj.weight": (8, 3, 2, 2)} if len(names) > 1 else {})
    with pytest.raises(NotRecognised):
        recognise(odd, HINTS)


def test_heads_of_published_sizes_are_known_and_others_are_asked_for() -> None:
    base = dict(vit(embed_dim=192, depth=12, num_heads=3).state_dict())
    assert recognise(shapes(base)).layout.arch.num_heads == (3,) * 12
    with pytest.raises(HeadsUnknown, match=r"state source\.num_heads"):
        understood(plain().state, Hints())
    with pytest.raises(HeadsUnknown, match="5 heads do not divide"):
        understood(plain().state, Hints(num_heads=5))


def test_decoder_is_noted_and_its_pixels_are_left_open() -> None:
    [note] = understood(mae_full().state).findings.notes
    assert "2 blocks of width 16" in note
    assert "cannot be told" in note


def test_maes_fixed_positions_are_recognised_by_their_values() -> None:
    assert has_fixed_positions(mae_encoder().state["pos_embed"])
    assert has_fixed_positions(mae_encoder().state["pos_embed"].half())
    assert not has_fixed_positions(plain().state["pos_embed"])


def test_resampled_positions_are_timms() -> None:
    state = plain().state
    found = understood(state)
    layout, resized = on_grid(found.layout, convert(state, found.entries), 6)
    expected_table = resample_abs_pos_embed(state["pos_embed"], new_size=[6, 6], old_size=[GRID, GRID])
    assert torch.equal(resized["pos_embed"], expected_table)
    assert (layout.grid, layout.arch.img_size) == (6, 6 * PATCH)
    assert build_vit(layout, resized).patch_embed.img_size == (24, 24)


@pytest.mark.parametrize("name", PUBLISHED)
def test_layout_survives_json(name: str) -> None:
    layout = understood(PUBLISHED[name]().state).layout
    assert VitLayout.from_json(layout.arch.to_json(), layout.to_json()) == layout


def test_licences_say_what_is_known() -> None:
    assert of_kind(Kind.MAE).commercial_use is False
    assert of_kind(Kind.DINOV2).name == "Apache-2.0"
    assert (of_kind(Kind.VIT).name, of_kind(Kind.VIT).commercial_use) == (None, None)
    assert stated("cc-by-nc-4.0", "timm").commercial_use is False
    assert stated("MIT", "the user").commercial_use is None
