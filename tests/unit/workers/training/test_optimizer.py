from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models.extract import build_timm
from tests.unit.workers.training.toys import TEACHER
from workers.training.optimizer import (
    build_adamw,
    layer_rate_scales,
    optimizer_tensors,
    restore_optimizer,
    set_rate,
)


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (4, 3), "bias": (4,), "token": (1, 1, 4), "unused": (2, 2)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def stepped(named: dict[str, nn.Parameter], optimizer: torch.optim.AdamW, grad: Callable[[str], Tensor | None]) -> None:
    for name, parameter in named.items():
        parameter.grad = grad(name)
    optimizer.step()


def test_only_matrices_decay() -> None:
    named = parameters()
    optimizer = build_adamw(named.items(), weight_decay=0.5)
    set_rate(optimizer, 0.1)
    before = {name: p.detach().clone() for name, p in named.items()}
    stepped(named, optimizer, lambda name: torch.zeros_like(named[name]))
    for name, parameter in named.items():
        factor = 0.95 if name in ("matrix", "unused") else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_tensor_without_gradient_keeps_weights_moments_and_step_count() -> None:
    named = parameters()
    optimizer = build_adamw(named.items(), weight_decay=0.5)
    set_rate(optimizer, 0.1)
    stepped(named, optimizer, lambda name: torch.ones_like(named[name]))
    weights = named["unused"].detach().clone()
    moments = {name: t.clone() for name, t in optimizer_tensors(optimizer, named.items()).items()}
    stepped(named, optimizer, lambda name: None if name == "unused" else torch.ones_like(named[name]))
    after = optimizer_tensors(optimizer, named.items())
    assert torch.equal(named["unused"], weights)
    for part in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.equal(after[f"unused.{part}"], moments[f"unused.{part}"])
    assert after["matrix.step"] == 2
    assert after["unused.step"] == 1


def test_state_round_trip_is_exact_also_for_untouched_tensors() -> None:
    named = parameters()
    optimizer = build_adamw(named.items(), weight_decay=0.05)
    set_rate(optimizer, 0.1)
    stepped(named, optimizer, lambda name: None if name == "unused" else torch.full_like(named[name], 0.3))
    saved = {name: t.clone() for name, t in optimizer_tensors(optimizer, named.items()).items()}
    assert not any(name.startswith("unused") for name in saved)

    twin = {name: nn.Parameter(p.detach().clone()) for name, p in named.items()}
    restored = build_adamw(twin.items(), weight_decay=0.05)
    restore_optimizer(restored, twin.items(), saved)
    set_rate(restored, 0.1)
    for pair in ((named, optimizer), (twin, restored)):
        stepped(*pair, lambda name: torch.full_like(named[name], -0.7))
    assert all(torch.equal(named[name], twin[name]) for name in named)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"matrix.step": torch.tensor(1.0)}, "matrix lacks exp_avg, exp_avg_sq"),
        ({"stranger.step": torch.tensor(1.0)}, "unknown parameters: stranger.step"),
    ],
)
def test_state_that_does_not_fit_is_refused(tensors: dict[str, Tensor], message: str) -> None:
    named = parameters()
    with pytest.raises(ValueError, match=message):
        restore_optimizer(build_adamw(named.items(), weight_decay=0.0), named.items(), tensors)


def test_layers_further_from_the_head_learn_slower() -> None:
    names = [name for name, _ in build_timm(TEACHER.with_classes(3), torch.Generator()).named_parameters()]
    scales = layer_rate_scales(names, TEACHER.depth, 0.5)
    assert scales["patch_embed.proj.weight"] == scales["cls_token"] == scales["pos_embed"] == 0.125
    assert scales["blocks.0.attn.qkv.weight"] == 0.25
    assert scales["blocks.1.mlp.fc2.bias"] == 0.5
    assert scales["norm.weight"] == scales["head.weight"] == 1.0


def test_rate_scales_reach_the_optimizer() -> None:
    named = parameters()
    optimizer = build_adamw(named.items(), weight_decay=0.0, rate_scales={"matrix": 0.5})
    set_rate(optimizer, 0.1)
    before = {name: p.detach().clone() for name, p in named.items()}
    stepped(named, optimizer, lambda name: torch.ones_like(named[name]))
    moved = {name: (before[name] - p.detach()).abs().max().item() for name, p in named.items()}
    assert moved["matrix"] == pytest.approx(0.05, rel=1e-4)
    assert moved["unused"] == pytest.approx(0.1, rel=1e-4)
