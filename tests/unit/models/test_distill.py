from __future__ import annotations

import pytest
import torch

from models.distill import FeatureProjector, feature_loss
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
