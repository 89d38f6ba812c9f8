from __future__ import annotations

import math

import pytest
import torch

from models.distill import (
    DistillConfig,
    FeatureLoss,
    FeatureProjector,
    Positions,
    ProjectorKind,
    TargetNorm,
    feature_loss,
    relation_loss,
)
from tests.unit.models.toys import seeded


def features(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed)) * 2 + 1


def test_loss_follows_its_formula_token_by_token() -> None:
    projected, teacher = features(2, 4, 6), features(2, 4, 6, seed=1)
    total, count = 0.0, 0
    for b in range(2):
        for j in range(1, 4):  # the class token at 0 does not count
            values = teacher[b, j].double()
            target = (values - values.mean()) / (values.var(correction=0) + 1e-6).sqrt()
            for u in (projected[b, j].double() - target).abs().tolist():
                total += u * u / 2 if u < 1 else u - 0.5
                count += 1
    assert feature_loss(projected, teacher).item() == pytest.approx(total / count, rel=1e-6)


def test_loss_ignores_the_class_token_and_the_scale_of_the_teacher() -> None:
    projected, teacher = features(2, 5, 8), features(2, 5, 8, seed=1)
    other = 3 * teacher + 7
    other[:, 0] = 100.0
    assert feature_loss(projected, other).item() == pytest.approx(feature_loss(projected, teacher).item(), rel=1e-5)


def test_gradient_reaches_the_student_only() -> None:
    projected, teacher = features(2, 5, 8).requires_grad_(), features(2, 5, 8, seed=1).requires_grad_()
    feature_loss(projected, teacher).backward()
    assert teacher.grad is None
    assert projected.grad is not None
    assert (projected.grad[:, 0] == 0).all()
    assert (projected.grad[:, 1:] != 0).all()


def test_projector_takes_every_width_and_trains_only_its_columns() -> None:
    projector = FeatureProjector(12, 8, seeded(0))
    tokens = features(2, 5, 7)
    projected = projector(tokens)
    torch.testing.assert_close(projected, tokens @ projector.weight[:, :7].T + projector.bias)
    projected.sum().backward()
    assert projector.weight.grad is not None
    assert (projector.weight.grad[:, 7:] == 0).all()
    assert (projector.weight.grad[:, :7] != 0).all()


def test_projector_depends_on_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, other = FeatureProjector(12, 8, seeded(0)), FeatureProjector(12, 8, seeded(0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.weight, other.weight)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="13 wide, allowed is at most 12"):
        FeatureProjector(12, 8, seeded(0))(features(2, 5, 13))
    with pytest.raises(ValueError, match=r"student features \(2, 5, 8\), teacher \(2, 4, 8\)"):
        feature_loss(features(2, 5, 8), features(2, 4, 8))


DMAE = DistillConfig(loss=FeatureLoss.L1, target_norm=TargetNorm.L2)
RELATION = DistillConfig(
    loss=FeatureLoss.RELATION, projector=ProjectorKind.NONE, target_norm=TargetNorm.NONE, positions=Positions.ALL
)


def written_out(loss: FeatureLoss, norm: TargetNorm, student: torch.Tensor, teacher: torch.Tensor) -> float:
    """The loss of two token vectors, number by number."""
    s, t = student.double().tolist(), teacher.double().tolist()
    if norm is TargetNorm.LAYERNORM:
        mean = sum(t) / len(t)
        spread = math.sqrt(sum((v - mean) ** 2 for v in t) / len(t) + 1e-6)
        t = [(v - mean) / spread for v in t]
    if norm is TargetNorm.L2:
        s, t = ([v / math.sqrt(sum(w * w for w in values)) for v in values] for values in (s, t))
    apart = [abs(a - b) for a, b in zip(s, t, strict=True)]
    values = {
        FeatureLoss.SMOOTH_L1: [u * u / 2 if u < 1 else u - 0.5 for u in apart],
        FeatureLoss.L1: apart,
        FeatureLoss.L2: [u * u for u in apart],
    }[loss]
    return sum(values) / len(values)


@pytest.mark.parametrize("norm", TargetNorm)
@pytest.mark.parametrize("loss", [FeatureLoss.SMOOTH_L1, FeatureLoss.L1, FeatureLoss.L2])
def test_each_loss_and_norm_follows_its_formula(loss: FeatureLoss, norm: TargetNorm) -> None:
    student, teacher = features(2, 4, 6), features(2, 4, 6, seed=1)
    expected = [written_out(loss, norm, student[b, j], teacher[b, j]) for b in range(2) for j in range(1, 4)]
    found = feature_loss(student, teacher, DistillConfig(loss=loss, target_norm=norm))
    assert found.item() == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_loss_of_dmae_compares_directions_alone() -> None:
    student, teacher = features(2, 4, 6), features(2, 4, 6, seed=1)
    scaled = feature_loss(3 * student, 0.2 * teacher, DMAE)
    torch.testing.assert_close(scaled, feature_loss(student, teacher, DMAE))


def test_relation_loss_follows_its_formula() -> None:
    student, teacher = features(2, 6, 3), features(2, 6, 7, seed=1)
    rows = []
    for b in range(2):
        for j in range(1, 6):
            logits = []
            for tokens in (teacher[b].double(), student[b].double()):
                cosines = [
                    (tokens[j] @ tokens[k] / tokens[j].norm() / tokens[k].norm()).item() for k in range(1, 6) if k != j
                ]
                mean = sum(cosines) / 4
                spread = math.sqrt(sum((c - mean) ** 2 for c in cosines) / 4)
                row = [math.exp((c - mean) / spread) for c in cosines]
                logits.append([v / sum(row) for v in row])
            rows.append(sum(p * math.log(p / q) for p, q in zip(*logits, strict=True)))
    assert feature_loss(student, teacher, RELATION).item() == pytest.approx(sum(rows) / len(rows), rel=1e-5)


def test_relation_loss_is_0_for_turned_and_scaled_tokens_and_reaches_the_student_only() -> None:
    teacher = features(2, 9, 5).requires_grad_()
    turn, _ = torch.linalg.qr(features(5, 5, seed=3))
    assert relation_loss(4 * teacher @ turn, teacher).item() == pytest.approx(0.0, abs=1e-6)
    student = features(2, 9, 3, seed=1).requires_grad_()
    relation_loss(student, teacher).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert (student.grad[:, 0] == 0).all()
    assert (student.grad[:, 1:] != 0).all()


def test_relation_loss_is_single_precision_within_mixed_precision() -> None:
    student, teacher = features(2, 9, 3), features(2, 9, 5, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = relation_loss(student, teacher)
    assert torch.equal(mixed, relation_loss(student, teacher))


@pytest.mark.parametrize(("kind", "hidden"), [(ProjectorKind.MLP1, 1), (ProjectorKind.MLP2, 2)])
def test_projectors_with_hidden_layers_are_gelu_networks_as_wide_as_the_teacher(
    kind: ProjectorKind, hidden: int
) -> None:
    projector, tokens = FeatureProjector(12, 8, seeded(0), kind), features(2, 5, 7)
    first, *others = (p for p in projector.parameters() if p.ndim == 2)
    assert [tuple(w.shape) for w in others] == [(8, 8)] * hidden
    expected = tokens @ first[:, :7].T
    for weight in others:
        expected = expected * 0.5 * (1 + torch.erf(expected / math.sqrt(2))) @ weight.T
    torch.testing.assert_close(projector(tokens), expected)  # biases start at 0


@pytest.mark.parametrize(
    ("loss", "projector", "norm"),
    [
        (FeatureLoss.RELATION, ProjectorKind.LINEAR, TargetNorm.NONE),
        (FeatureLoss.RELATION, ProjectorKind.NONE, TargetNorm.LAYERNORM),
        (FeatureLoss.L1, ProjectorKind.NONE, TargetNorm.NONE),
    ],
)
def test_contradicting_options_are_refused(loss: FeatureLoss, projector: ProjectorKind, norm: TargetNorm) -> None:
    with pytest.raises(ValueError, match="relations take bare tokens"):
        DistillConfig(loss=loss, projector=projector, target_norm=norm)
    with pytest.raises(ValueError, match="no projector"):
        FeatureProjector(12, 8, seeded(0), ProjectorKind.NONE)
