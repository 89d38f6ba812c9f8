from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models.distill import DistillConfig, FeatureLoss, ProjectorKind, TargetNorm, feature_loss
from models.masked import random_masking, reconstruction_loss
from tests.unit.workers.training.toys import CPU, DECODER, SPACE, images, settings, teacher
from workers.data.dataset import ImageSet
from workers.training.engine import Losses
from workers.training.masked import MaskedDistillation
from workers.training.streams import numpy_stream, torch_stream


def batch(data: ImageSet | None = None) -> torch.Tensor:
    return next((data or images()).batches(6))


def losses_of(objective: MaskedDistillation, x: torch.Tensor, step: int) -> Losses:
    """The losses of a step with one student."""
    [losses] = objective.losses(x, step)
    return losses


def test_loss_is_reconstruction_plus_weighted_distillation() -> None:
    objective = MaskedDistillation(settings(beta=0.3), teacher(), CPU)
    losses = losses_of(objective, batch(), 2)
    expected = losses.parts["reconstruction"] + 0.3 * losses.parts["distillation"]
    torch.testing.assert_close(losses.total, expected)


def test_parts_are_those_of_the_step_written_out() -> None:
    objective, x, step = MaskedDistillation(settings(), teacher(), CPU), batch(), 7
    losses = losses_of(objective, x, step)
    mask = random_masking(6, 16, 8, torch_stream(0, "supernet", "mask", step))
    arch = SPACE.sample(numpy_stream(0, "supernet", "architecture", step))
    tokens = objective.supernet.tokens(x, arch, mask.ids_keep)
    assert objective.decoder is not None
    assert objective.projector is not None
    predicted = objective.decoder(objective.supernet.final_norm(tokens, arch), mask.ids_restore)
    torch.testing.assert_close(losses.parts["reconstruction"], reconstruction_loss(predicted, x, mask.hidden, 2))
    features = teacher().visible_tokens(x, mask.ids_keep)
    torch.testing.assert_close(losses.parts["distillation"], feature_loss(objective.projector(tokens), features))


@pytest.mark.parametrize("alone", ["reconstruction", "distillation"])
def test_either_part_can_be_off(alone: str) -> None:
    decoder = DECODER if alone == "reconstruction" else None
    objective = MaskedDistillation(settings(decoder=decoder), teacher() if alone == "distillation" else None, CPU)
    assert losses_of(objective, batch(), 0).parts.keys() == {alone}


def test_both_parts_off_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to learn"):
        MaskedDistillation(settings(decoder=None), None, CPU)


def test_teacher_is_not_trained() -> None:
    frozen = teacher()
    objective = MaskedDistillation(settings(), frozen, CPU)
    before = {name: p.clone() for name, p in frozen.named_parameters()}
    losses_of(objective, batch(), 0).total.backward()
    trained = {id(p) for _, p in objective.named_parameters()}
    assert not any(id(p) in trained for p in frozen.parameters())
    assert all(p.grad is None for p in frozen.parameters())
    assert all(torch.equal(before[name], p) for name, p in frozen.named_parameters())


def test_encoders_never_see_hidden_patches() -> None:
    objective, x = MaskedDistillation(settings(), teacher(), CPU), batch()
    mask = random_masking(6, 16, 8, torch_stream(0, "supernet", "mask", 3))
    hidden = mask.hidden.view(6, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
    changed = torch.where(hidden > 0, x + 5.0, x)
    one, other = losses_of(objective, x, 3), losses_of(objective, changed, 3)
    torch.testing.assert_close(one.parts["distillation"], other.parts["distillation"], rtol=0, atol=0)


def test_step_decides_mask_and_architecture() -> None:
    x = batch()
    twice = [losses_of(MaskedDistillation(settings(), teacher(), CPU), x, 4).total for _ in range(2)]
    assert torch.equal(*twice)
    other = losses_of(MaskedDistillation(settings(), teacher(), CPU), x, 5).total
    assert not torch.equal(twice[0], other)


def test_only_the_sampled_slice_gets_gradients() -> None:
    objective = MaskedDistillation(settings(), teacher(), CPU)
    step = next(
        s
        for s in range(100)
        if (a := SPACE.sample(numpy_stream(0, "supernet", "architecture", s))).depth == 1 and a.embed_dim == 16
    )
    losses_of(objective, batch(), step).total.backward()
    grads = {name: p.grad for name, p in objective.named_parameters()}
    assert all(
        grad is None for name, grad in grads.items() if name.startswith(("supernet.blocks.1", "supernet.blocks.2"))
    )
    qkv = grads["supernet.blocks.0.attn.qkv.weight"]
    projector = grads["projector.weight"]
    assert qkv is not None
    assert projector is not None
    assert (qkv[:, 16:] == 0).all()
    assert (projector[:, 16:] == 0).all()
    assert (projector[:, :16] != 0).any()


def test_teacher_pretraining_is_a_plain_masked_autoencoder() -> None:
    only = replace(SPACE, embed_dim=(24,), depth=(2,), num_heads=(2,), mlp_ratio=(2.0,))
    objective = MaskedDistillation(settings(space=only, stage="teacher"), None, CPU)
    x = batch()
    loss = losses_of(objective, x, 1).total
    arch = only.largest()
    mask = random_masking(6, 16, 8, torch_stream(0, "teacher", "mask", 1))
    assert objective.decoder is not None
    tokens = objective.supernet.final_norm(objective.supernet.tokens(x, arch, mask.ids_keep), arch)
    predicted = objective.decoder(tokens, mask.ids_restore)
    patches = F.unfold(x, 2, stride=2).transpose(1, 2)
    target = (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()
    error = ((predicted - target) ** 2).mean(-1)
    torch.testing.assert_close(loss, error[mask.hidden > 0].mean())


@pytest.mark.parametrize("norm_targets", [False, True])
@pytest.mark.parametrize("relations", [False, True])
def test_images_of_one_colour_give_finite_losses_and_gradients(norm_targets: bool, relations: bool) -> None:
    distill = DistillConfig()
    if relations:
        distill = DistillConfig(loss=FeatureLoss.RELATION, projector=ProjectorKind.NONE, target_norm=TargetNorm.NONE)
    objective = MaskedDistillation(settings(norm_targets=norm_targets, distill=distill), teacher(), CPU)
    losses = losses_of(objective, torch.full((6, 1, 8, 8), 0.3), 2)
    losses.total.backward()  # type: ignore[no-untyped-call]
    assert losses.total.isfinite()
    assert all(bool(p.grad.isfinite().all()) for _, p in objective.named_parameters() if p.grad is not None)
