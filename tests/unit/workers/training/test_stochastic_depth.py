from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from models.extract import build_timm
from tests.unit.workers.training.toys import TEACHER
from workers.training.stochastic_depth import SkippedBranch, StochasticDepth, drop_rates

CPU = torch.device("cpu")
ARCH = replace(TEACHER, depth=4, num_heads=(2,) * 4, mlp_ratio=(2.0,) * 4, num_classes=3)


def network() -> VisionTransformer:
    return build_timm(ARCH, torch.Generator().manual_seed(0))


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def scales(model: VisionTransformer) -> torch.Tensor:
    """What the branches of the last draw are multiplied by (R, B)."""
    branches = [module for module in model.modules() if isinstance(module, SkippedBranch)]
    return torch.stack([branch.scale_B11.flatten() for branch in branches if branch.scale_B11 is not None])


def test_rates_rise_linearly_over_the_networks_own_depth() -> None:
    assert drop_rates(0.3, 4).tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_branches_are_skipped_as_often_as_their_block_says_and_keep_their_mean() -> None:
    model = network().train()
    StochasticDepth(model, 0.6, 0, ("x",)).draw(4000, 0, CPU)
    drawn = scales(model)
    assert len(drawn) == 8
    rates = torch.tensor([0.0, 0.0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6])
    torch.testing.assert_close((drawn == 0).float().mean(dim=1), rates, atol=0.035, rtol=0)
    torch.testing.assert_close(drawn.amax(dim=1), 1 / (1 - rates))


def test_forward_leaves_out_exactly_the_skipped_branches() -> None:
    model = network().train()
    StochasticDepth(model, 0.6, 0, ("x",)).draw(6, 0, CPU)
    drawn = scales(model)
    plain = network()
    with torch.inference_mode():
        x = images()
        tokens = plain._pos_embed(plain.patch_embed(x))
        for block, (attention, mlp) in zip(plain.blocks, drawn.view(4, 2, 6, 1, 1), strict=True):
            tokens = tokens + attention * block.attn(block.norm1(tokens))
            tokens = tokens + mlp * block.mlp(block.norm2(tokens))
        torch.testing.assert_close(model(x), plain.forward_head(plain.norm(tokens)))


def test_eval_mode_skips_nothing() -> None:
    model = network()
    StochasticDepth(model, 0.9, 0, ("x",)).draw(6, 0, CPU)
    with torch.inference_mode():
        assert torch.equal(model.eval()(images()), network().eval()(images()))


def test_weights_and_their_names_are_those_of_the_plain_network() -> None:
    model = network()
    StochasticDepth(model, 0.9, 0, ("x",)).draw(6, 0, CPU)
    state, plain = model.state_dict(), network().state_dict()
    assert list(state) == list(plain)
    assert all(torch.equal(state[name], plain[name]) for name in plain)


def test_draws_are_a_function_of_seed_stage_and_step() -> None:
    def drawn(seed: int, stage: str, step: int, before: tuple[int, ...] = ()) -> torch.Tensor:
        model = network()
        depth = StochasticDepth(model, 0.6, seed, (stage,))
        for other in (*before, step):
            depth.draw(20, other, CPU)
        return scales(model)

    assert torch.equal(drawn(0, "x", 3), drawn(0, "x", 3, before=(0, 1, 2)))
    for other in (drawn(1, "x", 3), drawn(0, "y", 3), drawn(0, "x", 4)):
        assert not torch.equal(drawn(0, "x", 3), other)


def test_the_global_generator_is_left_alone() -> None:
    model = network().train()
    before = torch.get_rng_state()
    StochasticDepth(model, 0.6, 0, ("x",)).draw(6, 0, CPU)
    model(images())
    assert torch.equal(torch.get_rng_state(), before)
