"""Published weights as the start of slimmable networks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.architecture import Architecture
from models.extract import StateError, build_timm
from models.foreign.layout import VitLayout
from models.foreign.recognition import Hints, recognise
from models.foreign.start import start_problems
from models.slimmable import SlimmableError
from models.slimmable_start import slimmable_start
from models.supernet import Supernet
from models.teacher_weights import build_vit, convert, on_grid
from tests.published_files import HEADS, PATCH, PUBLISHED, SIZE, Published, State, plain, random, vit
from tests.unit.models.toys import seeded
from workers.training.files import load_parameters

REPRESENTABLE = ("plain", "mae-encoder", "mae-full", "mae-finetuned", "deit3", "dinov2", "dinov2-huggingface")
REFUSED = {
    "dinov2-registers": {"/registers"},
    "dinov2-huggingface-registers": {"/registers"},
    "registers-with-positions": {"/registers"},
    "dinov2-gated": {"/activation"},
    "dinov2-huggingface-gated": {"/activation"},
    "no-class-position": {"/qk_norm"},
}


def read(published: Published) -> tuple[VitLayout, State]:
    shapes = {name: tuple(tensor.shape) for name, tensor in published.state.items()}
    found = recognise(shapes, Hints(num_heads=HEADS))
    return found.layout, convert(published.state, found.entries)


def whole(layout: VitLayout, **changes: object) -> Architecture:
    fields = {"layer_scale": layout.layer_scale, "num_classes": 5, **changes}
    return replace(layout.arch, **fields)  # type: ignore[arg-type]  # values of the record's own fields


def supernet(state: State, largest: Architecture) -> Supernet:
    net = Supernet(largest, seeded(9))
    load_parameters(dict(net.named_parameters()), state)
    return net


def images(size: int = SIZE) -> Tensor:
    return random(2, 3, size, size)


@pytest.mark.parametrize("name", REPRESENTABLE)
@torch.no_grad()
def test_the_whole_network_gives_the_published_features(name: str) -> None:
    published = PUBLISHED[name]()
    layout, tensors = read(published)
    largest = whole(layout)
    net = supernet(slimmable_start(layout, tensors, largest, seeded(0)), largest)
    [(patches, prefix)] = published.network.forward_intermediates(
        images(), indices=1, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    expected = torch.cat((prefix, patches), dim=1)
    torch.testing.assert_close(net.tokens(images(), largest), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_slimmable_form_is_refused_by_name(name: str) -> None:
    layout, tensors = read(PUBLISHED[name]())
    with pytest.raises(SlimmableError) as refused:
        slimmable_start(layout, tensors, whole(layout), seeded(0))
    assert {problem.pointer for problem in refused.value.problems} == REFUSED[name]
    assert {problem.pointer for problem in start_problems(layout)} == REFUSED[name]


def test_norms_before_the_blocks_are_refused() -> None:
    layout, tensors = read(plain())
    with pytest.raises(SlimmableError, match="/pre_norm: found True, allowed is False"):
        slimmable_start(replace(layout, pre_norm=True), tensors, whole(layout), seeded(0))


@torch.no_grad()
def test_published_distillation_token_becomes_the_networks_own() -> None:
    published = PUBLISHED["deit-distilled"]()
    layout, tensors = read(published)
    largest = whole(layout, distilled=True)
    heads = {name: tensor for name, tensor in published.state.items() if name.startswith("head")}
    state = slimmable_start(layout, {**tensors, **heads}, largest, seeded(0))
    torch.testing.assert_close(
        supernet(state, largest)(images(), largest), published.network(images()), rtol=1e-5, atol=1e-5
    )


def test_a_distillation_token_without_a_model_starts_as_the_class_token() -> None:
    layout, tensors = read(plain())
    state = slimmable_start(layout, tensors, whole(layout, distilled=True), seeded(0))
    assert torch.equal(state["dist_token"], tensors["cls_token"])
    assert torch.equal(state["pos_embed"][:, 1], state["pos_embed"][:, 0])
    assert torch.equal(state["pos_embed"][:, 2:], tensors["pos_embed"][:, 1:])


@pytest.mark.parametrize("distilled", [False, True])
def test_a_distillation_token_is_a_register_only_to_a_distilled_network(distilled: bool) -> None:
    layout, _ = read(PUBLISHED["deit-distilled"]())
    found = [problem.pointer for problem in start_problems(layout, whole(layout, distilled=distilled))]
    assert found == ([] if distilled else ["/registers"])


@torch.no_grad()
def test_positions_are_resampled_to_another_grid() -> None:
    layout, tensors = read(PUBLISHED["dinov2"]())
    largest = whole(layout, img_size=6 * PATCH)
    state = slimmable_start(layout, tensors, largest, seeded(0))
    placed, resized = on_grid(layout, tensors, 6)
    x = images(6 * PATCH)
    expected = build_vit(placed, resized).eval().forward_features(x)
    net = supernet(state, largest)
    torch.testing.assert_close(net.final_norm(net.tokens(x, largest), largest), expected, rtol=1e-5, atol=1e-5)


def test_heads_of_other_classes_are_fresh_and_those_of_the_same_stay() -> None:
    layout, tensors = read(plain())
    heads = {name: tensor for name, tensor in plain().state.items() if name.startswith("head.")}
    same = slimmable_start(layout, {**tensors, **heads}, whole(layout, num_classes=10), seeded(0))
    assert torch.equal(same["head.weight"], heads["head.weight"])
    for given, classes in (({**tensors, **heads}, 7), (tensors, 10)):
        fresh = slimmable_start(layout, given, whole(layout, num_classes=classes), seeded(0))
        assert fresh["head.weight"].shape[0] == classes
        assert fresh["head.weight"].std() < 0.03
        assert (fresh["head.bias"] == 0).all()


def test_what_the_published_network_lacks_changes_nothing() -> None:
    network = vit(no_embed_class=True, qkv_bias=False)
    published = Published(dict(network.state_dict()), network, "vit")
    layout, tensors = read(published)
    largest = whole(layout, num_classes=0)
    state = slimmable_start(layout, tensors, largest, seeded(0))
    alone = build_timm(largest).eval()
    alone.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(alone(images()), network(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "pointers"),
    [
        ({"norm_eps": 1e-5}, {"/norm_eps"}),
        ({"layer_scale": True}, {"/layer_scale"}),
        ({"mlp_ratio": (2.0,) * 3}, {"/mlp_ratio"}),
        ({"head_dim": 4, "num_heads": (8,) * 3}, {"/head_dim", "/num_heads"}),
        ({"patch_size": 2}, {"/patch_size"}),
        ({"in_chans": 1}, {"/in_chans"}),
        ({"rel_pos": True}, {"/rel_pos"}),
    ],
)
def test_networks_of_another_size_are_refused(changes: dict[str, object], pointers: set[str]) -> None:
    layout, tensors = read(plain())
    with pytest.raises(SlimmableError) as refused:
        slimmable_start(layout, tensors, whole(layout, **changes), seeded(0))
    assert {problem.pointer for problem in refused.value.problems} == pointers


def test_tensors_of_another_layout_are_refused() -> None:
    layout, tensors = read(plain())
    del tensors["norm.bias"]
    with pytest.raises(StateError, match=r"norm\.bias"):
        slimmable_start(layout, tensors, whole(layout), seeded(0))


def test_start_weights_share_nothing_with_the_published_ones() -> None:
    layout, tensors = read(plain())
    state = slimmable_start(layout, tensors, whole(layout), seeded(0))
    before = tensors["norm.weight"].clone()
    state["norm.weight"].zero_()
    assert torch.equal(tensors["norm.weight"], before)
