from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from models.architecture import Architecture
from models.extract import StateError, build_timm
from models.initialisation import initial_state
from models.masked import random_masking
from models.supernet import Supernet
from models.teacher import FrozenTeacher, TeacherError
from tests.unit.models.toys import LARGEST, randomise, seeded

ARCH = Architecture(
    embed_dim=16, depth=2, num_heads=(2, 2), mlp_ratio=(2.0, 2.0), head_dim=8, img_size=12, patch_size=3, num_classes=0
)


def teacher(arch: Architecture = ARCH) -> FrozenTeacher:
    network = build_timm(arch, seeded(0))
    randomise(network.state_dict(), seeded(1))
    return FrozenTeacher(network)


def plain_vit(**options: object) -> VisionTransformer:
    return VisionTransformer(
        img_size=12,
        patch_size=3,
        embed_dim=16,
        depth=2,
        num_heads=2,
        num_classes=0,
        **options,  # type: ignore[arg-type]
    )


def images(batch: int = 2, seed: int = 5) -> torch.Tensor:
    return torch.randn(batch, 3, 12, 12, generator=seeded(seed))


def every_patch(batch: int = 2) -> torch.Tensor:
    return torch.arange(16).repeat(batch, 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"reg_tokens": 3}, {"no_embed_class": True}, {"pre_norm": True}, {"init_values": 0.1, "qk_norm": True}],
    ids=["plain", "registers", "patch-positions", "pre-norm", "layer-scale"],
)
def test_features_equal_timms_own_when_nothing_is_hidden(options: dict[str, object]) -> None:
    network = plain_vit(**options)
    randomise(network.state_dict(), seeded(1))
    tokens = FrozenTeacher(network).visible_tokens(images(), every_patch())
    with torch.no_grad():
        patches, prefix = network.forward_intermediates(
            images(), indices=1, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
        )[0]
    torch.testing.assert_close(tokens, torch.cat((prefix[:, :1], patches), dim=1), rtol=0, atol=1e-6)


def test_features_are_taken_before_the_final_norm() -> None:
    net = teacher()
    tokens = net.visible_tokens(images(), every_patch())
    torch.testing.assert_close(net.network.norm(tokens), net.network.forward_features(images()), rtol=0, atol=1e-5)


@torch.no_grad()
def test_teacher_and_student_of_equal_weights_agree_on_every_mask() -> None:
    student = Supernet(ARCH, seeded(0))
    network = build_timm(ARCH)
    network.load_state_dict(student.state_dict())
    net = FrozenTeacher(network)
    for seed in range(5):
        kept = random_masking(2, 16, 4, seeded(seed)).ids_keep
        expected = student.tokens(images(), ARCH, kept)
        torch.testing.assert_close(net.visible_tokens(images(), kept), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_teacher_and_student_see_the_same_patches() -> None:
    """Networks without blocks' influence, whose position tables name the patch: tokens must spell the ids."""
    kept = random_masking(4, 16, 6, seeded(3)).ids_keep
    marks = torch.arange(17.0)
    student = Supernet(LARGEST, seeded(0))
    network = build_timm(ARCH, seeded(0))
    for parameters in (student.state_dict(), network.state_dict()):
        for tensor in parameters.values():
            tensor.zero_()
        parameters["pos_embed"].copy_(marks.view(1, 17, 1).expand_as(parameters["pos_embed"]))
    expected = torch.cat((torch.zeros(4, 1), kept + 1.0), dim=1)
    assert torch.equal(student.tokens(images(4), LARGEST, kept)[..., 0], expected)
    assert torch.equal(FrozenTeacher(network).visible_tokens(images(4), kept)[..., 0], expected)


def test_teacher_stays_frozen_and_in_eval_mode() -> None:
    network = plain_vit(drop_path_rate=0.9, proj_drop_rate=0.9)
    net = FrozenTeacher(network)
    wrapper = nn.ModuleDict({"teacher": net}).train()
    assert not net.network.training
    assert not any(p.requires_grad for p in wrapper.parameters())
    once, again = (net.visible_tokens(images().requires_grad_(), every_patch()) for _ in range(2))
    assert torch.equal(once, again)
    assert not once.requires_grad


@pytest.mark.parametrize(
    ("options", "lacking"),
    [({"class_token": False, "global_pool": "avg"}, "class token"), ({"pos_embed": "none"}, "position table")],
    ids=["class-token", "positions"],
)
def test_network_that_cannot_serve_is_refused(options: dict[str, object], lacking: str) -> None:
    with pytest.raises(TeacherError, match=f"no {lacking}"):
        FrozenTeacher(plain_vit(**options))


def test_teacher_loads_from_a_file(tmp_path: Path) -> None:
    state = initial_state(ARCH, seeded(2))
    save_file(state, tmp_path / "teacher.safetensors")
    net = FrozenTeacher.load(tmp_path / "teacher.safetensors", ARCH)
    assert net.embed_dim == 16
    loaded = net.network.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_file_of_another_network_is_refused_by_tensor_name(tmp_path: Path) -> None:
    state = initial_state(ARCH, seeded(2))
    state["decoder_embed.weight"] = torch.zeros(2, 2)
    save_file(state, tmp_path / "teacher.safetensors")
    with pytest.raises(StateError, match=r"unexpected: decoder_embed\.weight"):
        FrozenTeacher.load(tmp_path / "teacher.safetensors", ARCH)


@pytest.mark.parametrize("shape", [(2, 3, 12, 15), (2, 1, 12, 12), (3, 12, 12), (5, 3, 12, 12)], ids=str)
def test_images_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(B, 3, 12, 12\)"):
        teacher().visible_tokens(torch.zeros(shape), every_patch())


def test_features_after_each_block_are_timms_own_when_nothing_is_hidden() -> None:
    network = plain_vit(reg_tokens=2)
    randomise(network.state_dict(), seeded(1))
    with torch.no_grad():
        expected = network.forward_intermediates(images(), norm=False, output_fmt="NLC", intermediates_only=True)
    found = FrozenTeacher(network).features(images(), None, after=(1, 2))
    for tokens, patches in zip(found, expected, strict=True):
        assert torch.allclose(tokens[:, 1:], patches, atol=1e-6)


def test_features_of_blocks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed is 1 to 2, ascending"):
        teacher().features(images(), None, after=(3,))
