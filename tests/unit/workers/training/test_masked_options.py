"""Each option of the masked objective changes the loss as its formula says, and trains what it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.architecture import Architecture
from models.distill import (
    DistillConfig,
    FeatureLoss,
    Layer,
    Positions,
    ProjectorKind,
    TargetNorm,
    feature_loss,
    relation_loss,
)
from models.extract import build_timm
from models.masked import MaskedDecoder, PatchMask, patchify, random_masking
from models.teacher import FrozenTeacher
from search.metrics import Metric, Window
from search.sampling import FeasibleSet
from tests.unit.models.toys import seeded
from tests.unit.workers.training.toys import (
    CPU,
    DECODER,
    SPACE,
    TEACHER,
    Interrupt,
    Watcher,
    images,
    loop_of,
    settings,
    teacher,
)
from workers.training.engine import Losses
from workers.training.masked import MaskedDistillation
from workers.training.streams import numpy_stream, torch_stream
from workers.training.subnets import Sampling, SubnetPlan

STEP = 7
DEEP = replace(TEACHER, depth=4, num_heads=(2,) * 4, mlp_ratio=(2.0,) * 4)
BARE = {"loss": FeatureLoss.RELATION, "projector": ProjectorKind.NONE, "target_norm": TargetNorm.NONE}


def batch() -> Tensor:
    return next(images().batches(6))


def mask_of(step: int = STEP) -> PatchMask:
    return random_masking(6, 16, 8, torch_stream(0, "supernet", "mask", step))


def student_of(step: int = STEP) -> Architecture:
    return SPACE.sample(numpy_stream(0, "supernet", "architecture", step))


def deep_teacher() -> FrozenTeacher:
    return FrozenTeacher(build_timm(DEEP, seeded(5)))


def deep_student_step() -> int:
    """A step whose student has three blocks, of which the second ends three quarters."""
    return next(step for step in range(100) if student_of(step).depth == 3)


def objective_with(frozen: FrozenTeacher | None = None, **changes: Any) -> MaskedDistillation:
    """The toy objective with options of distillation by name."""
    known = {
        name: changes.pop(name)
        for name in ("positions", "layer", "loss", "projector", "target_norm")
        if name in changes
    }
    return MaskedDistillation(settings(distill=DistillConfig(**known), **changes), frozen or teacher(), CPU)


def losses_of(objective: MaskedDistillation, step: int = STEP) -> Losses:
    [losses] = objective.losses(batch(), step)
    return losses


def decoded(objective: MaskedDistillation, arch: Architecture, mask: PatchMask) -> Tensor:
    """Decoder tokens (B, 1 + N, e) of a student."""
    assert objective.decoder is not None
    tokens = objective.supernet.final_norm(objective.supernet.tokens(batch(), arch, mask.ids_keep), arch)
    return objective.decoder.tokens(tokens, mask.ids_restore)


def at_hidden(tokens: Tensor, mask: PatchMask) -> Tensor:
    """Class token and hidden patches, picked image by image."""
    rows = []
    for image, hidden in zip(tokens, mask.hidden, strict=True):
        places = [k for k in range(16) if hidden[k]]
        # The order in which the mask counts them does not matter to a mean.
        rows.append(torch.stack([image[0], *(image[1 + k] for k in places)]))
    return torch.stack(rows)


def masked_distance(objective: MaskedDistillation, mask: PatchMask, frozen: FrozenTeacher) -> Tensor:
    """The distance between decoder tokens and a teacher that sees everything, at hidden patches."""
    assert objective._hidden_projector is not None
    [whole] = frozen.features(batch(), None, after=(frozen.depth,))
    own = objective._hidden_projector(at_hidden(decoded(objective, student_of(), mask), mask))
    return feature_loss(own, at_hidden(whole, mask))


def visible_distance(objective: MaskedDistillation, mask: PatchMask, frozen: FrozenTeacher) -> Tensor:
    assert objective.projector is not None
    own = objective.projector(objective.supernet.tokens(batch(), student_of(), mask.ids_keep))
    return feature_loss(own, frozen.visible_tokens(batch(), mask.ids_keep))


def test_masked_positions_compare_decoder_tokens_with_a_teacher_that_sees_all() -> None:
    objective, mask = objective_with(positions=Positions.MASKED), mask_of()
    assert objective.projector is None
    expected = masked_distance(objective, mask, teacher())
    torch.testing.assert_close(losses_of(objective).parts["distillation"], expected)


@pytest.mark.parametrize("visible", [4, 8, 12])
def test_all_positions_average_over_all_patches(visible: int) -> None:
    objective = objective_with(positions=Positions.ALL, mask_ratio=1 - visible / 16)
    mask = random_masking(6, 16, visible, torch_stream(0, "supernet", "mask", STEP))
    expected = (
        visible * visible_distance(objective, mask, teacher())
        + (16 - visible) * masked_distance(objective, mask, teacher())
    ) / 16
    torch.testing.assert_close(losses_of(objective).parts["distillation"], expected)


def test_masked_positions_train_encoder_and_decoder_but_no_pixels_without_reconstruction() -> None:
    objective = objective_with(positions=Positions.MASKED, reconstruction=False)
    losses = losses_of(objective)
    assert losses.parts.keys() == {"distillation"}
    losses.total.backward()
    grads = {name: p.grad for name, p in objective.named_parameters()}
    assert all(grads[name] is None for name in ("decoder.predict.weight", "decoder.predict.bias"))
    for name in ("supernet.patch_embed.proj.weight", "decoder.mask_token", "hidden_projector.weight"):
        gradient = grads[name]
        assert gradient is not None
        assert (gradient != 0).any()


def test_three_quarters_compare_tokens_after_that_share_of_the_blocks() -> None:
    frozen, step = deep_teacher(), deep_student_step()
    objective, mask = objective_with(frozen, layer=Layer.THREE_QUARTER), mask_of(step)
    assert objective.projector is not None
    # round(0.75 * 3) = 2 and round(0.75 * 4) = 3 blocks.
    [own] = objective.supernet.features(batch(), student_of(step), mask.ids_keep, after=(2,))
    [target] = frozen.features(batch(), mask.ids_keep, after=(3,))
    expected = feature_loss(objective.projector(own), target)
    torch.testing.assert_close(losses_of(objective, step).parts["distillation"], expected)


def test_three_quarters_leave_the_rest_of_the_teacher_out() -> None:
    frozen, ran = deep_teacher(), []
    for i, block in enumerate(frozen.network.blocks):
        block.register_forward_hook(lambda *_, i=i: ran.append(i))
    losses_of(objective_with(frozen, layer=Layer.THREE_QUARTER))
    assert ran == [0, 1, 2]


def test_distillation_after_three_quarters_reaches_no_later_block() -> None:
    step = deep_student_step()
    objective = objective_with(deep_teacher(), layer=Layer.THREE_QUARTER)
    losses_of(objective, step).parts["distillation"].backward()
    reached = {name for name, p in objective.named_parameters() if p.grad is not None}
    assert not {name for name in reached if name.startswith(("supernet.blocks.2", "supernet.norm", "decoder"))}
    assert {"supernet.blocks.1.mlp.fc2.weight", "projector.weight"} <= reached


def test_relations_are_of_bare_tokens() -> None:
    objective, mask = objective_with(**BARE), mask_of()
    assert not [name for name, _ in objective.named_parameters() if "projector" in name]
    own = objective.supernet.tokens(batch(), student_of(), mask.ids_keep)
    expected = relation_loss(own, teacher().visible_tokens(batch(), mask.ids_keep))
    torch.testing.assert_close(losses_of(objective).parts["distillation"], expected)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_reconstruction_of_the_teachers_prediction_is_a_weighted_sum_with_the_pixels(share: float) -> None:
    frozen, own = teacher(), MaskedDecoder(TEACHER, DECODER, seeded(9))
    plan = settings(teacher_share=share, distill=None)
    objective = MaskedDistillation(plan, frozen, CPU, teacher_decoder=own)
    x, mask = batch(), mask_of()
    with torch.no_grad():
        teachers = own(frozen.network.norm(frozen.visible_tokens(x, mask.ids_keep)), mask.ids_restore)
    pixels = patchify(x, 2)
    pixels = (pixels - pixels.mean(-1, keepdim=True)) / (pixels.var(-1, keepdim=True) + 1e-6).sqrt()
    target = share * teachers + (1 - share) * pixels
    assert objective.decoder is not None
    predicted = objective.decoder.predict(decoded(objective, student_of(), mask))[:, 1:]
    expected = (predicted - target).square().mean(-1)[mask.hidden > 0].mean()
    losses = losses_of(objective)
    assert losses.parts.keys() == {"reconstruction"}
    torch.testing.assert_close(losses.total, expected)
    losses.total.backward()
    assert all(p.grad is None for p in [*frozen.parameters(), *own.parameters()])


@pytest.mark.parametrize(
    "plan",
    [SubnetPlan(students=3), SubnetPlan(sampling=Sampling.SANDWICH, students=3)],
    ids=["uniform", "sandwich"],
)
def test_loss_of_several_students_is_the_mean_of_their_own(plan: SubnetPlan) -> None:
    together = MaskedDistillation(settings(subnets=plan), teacher(), CPU)
    summands = list(together.losses(batch(), STEP))
    torch.stack([losses.total for losses in summands]).sum().backward()
    students = plan.draw(SPACE, numpy_stream(0, "supernet", "architecture", STEP))
    assert len(summands) == len(students) == 3
    alone = MaskedDistillation(settings(), teacher(), CPU)
    alone_losses = [_loss_of(alone, arch) for arch in students]
    for found, expected in zip(summands, alone_losses, strict=True):
        torch.testing.assert_close(found.total, expected / 3)
    (torch.stack(alone_losses).sum() / 3).backward()
    expected_grads = {name: p.grad for name, p in alone.named_parameters()}
    for name, p in together.named_parameters():
        if expected_grads[name] is None:
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad, expected_grads[name], atol=1e-6, rtol=1e-4)


def _loss_of(objective: MaskedDistillation, arch: Architecture) -> Tensor:
    """The loss of one student of the step, by an objective whose space is that student."""
    x, mask = batch(), mask_of()
    assert objective.decoder is not None
    assert objective.projector is not None
    tokens = objective.supernet.tokens(x, arch, mask.ids_keep)
    predicted = objective.decoder(objective.supernet.final_norm(tokens, arch), mask.ids_restore)
    pixels = patchify(x, 2)
    pixels = (pixels - pixels.mean(-1, keepdim=True)) / (pixels.var(-1, keepdim=True) + 1e-6).sqrt()
    reconstruction = (predicted - pixels).square().mean(-1)[mask.hidden > 0].mean()
    return reconstruction + feature_loss(objective.projector(tokens), teacher().visible_tokens(x, mask.ids_keep))


def test_teacher_looks_once_however_many_students_there_are() -> None:
    frozen, looks = teacher(), []
    frozen.network.patch_embed.register_forward_hook(lambda *_: looks.append(1))
    objective = MaskedDistillation(settings(subnets=SubnetPlan(students=4)), frozen, CPU)
    assert len(list(objective.losses(batch(), STEP))) == 4
    assert len(looks) == 1


def test_narrower_students_learn_relations_from_the_next_wider_one() -> None:
    space = replace(SPACE, embed_dim=(12, 16, 20, 24))
    plan = SubnetPlan(sampling=Sampling.WIDTHS, students=3)
    objective, mask = objective_with(space=space, subnets=plan, **BARE), mask_of()
    summands = list(objective.losses(batch(), STEP))
    students = plan.draw(space, numpy_stream(0, "supernet", "architecture", STEP))
    assert [arch.embed_dim for arch in students][::2] == [24, 12]
    own = [objective.supernet.tokens(batch(), arch, mask.ids_keep) for arch in students]
    teaching = [teacher().visible_tokens(batch(), mask.ids_keep), *own]
    for losses, student, wider in zip(summands, own, teaching, strict=False):
        torch.testing.assert_close(losses.parts["distillation"], relation_loss(student, wider) / 3)


def test_wider_students_get_no_gradient_from_narrower_ones() -> None:
    space = replace(SPACE, embed_dim=(16, 24), depth=(1,))
    plan = SubnetPlan(sampling=Sampling.WIDTHS, students=2)
    objective = objective_with(space=space, subnets=plan, reconstruction=False, decoder=None, **BARE)
    _, narrow = objective.losses(batch(), STEP)
    narrow.total.backward()
    grads = {name: p.grad for name, p in objective.named_parameters()}
    kernel = grads["supernet.patch_embed.proj.weight"]
    assert kernel is not None
    assert (kernel[16:] == 0).all()
    assert (kernel[:16] != 0).any()


MIDDLE = [Metric.PARAMS_M.count_of(arch) for arch in (SPACE.smallest(), SPACE.largest())]
WINDOW = FeasibleSet(SPACE, [Window(Metric.PARAMS_M, MIDDLE[0] + 500, MIDDLE[1] - 500)], 0)
PLANS = {
    "students": {"subnets": SubnetPlan(students=2)},
    "sandwich": {"subnets": SubnetPlan(sampling=Sampling.SANDWICH, students=3)},
    "window": {"subnets": SubnetPlan(sampling=Sampling.WINDOW, students=2, window=WINDOW, extremes=0.3)},
    "widths": {"subnets": SubnetPlan(sampling=Sampling.WIDTHS, students=2), "distill": DistillConfig(**BARE)},
    "all": {"distill": DistillConfig(positions=Positions.ALL, projector=ProjectorKind.MLP1)},
}


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS.keys())
def test_interrupted_training_ends_in_the_same_bytes(changes: dict[str, Any], tmp_path: Path) -> None:
    def fresh() -> Any:
        return loop_of(MaskedDistillation(settings(**changes), teacher(), CPU), 8)

    whole, saved = fresh(), tmp_path / "state"
    whole.run(Watcher())
    for stop in (*sorted(np.random.default_rng(1).choice(np.arange(1, 8), 2, replace=False)), None):
        loop = fresh()
        if saved.exists():
            loop.restore(saved)
        try:
            loop.run(Watcher(stop_at=stop))
        except Interrupt:
            loop.save(saved)
    loop.save(saved)
    whole.save(tmp_path / "whole")
    assert saved.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distill": DistillConfig(positions=Positions.ALL), "decoder": None}, "there is no decoder"),
        ({"teacher_share": 0.5}, "needs reconstruction and the teacher's decoder"),
        ({"reconstruction": False, "distill": None}, "nothing to learn"),
    ],
)
def test_parts_that_lack_what_they_need_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedDistillation(settings(**changes), teacher(), CPU)
