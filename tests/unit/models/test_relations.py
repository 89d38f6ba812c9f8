from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from models.relations import consistency_score, log_relations, relation_logits
from tests.unit.models.toys import seeded

OPTIONS = [{"tau": 1.0, "standardise": True}, {"tau": 0.1, "standardise": False}]
options = pytest.mark.parametrize("options", OPTIONS, ids=["standardised", "cosine"])


def tokens(width: int = 12, *, batch: int = 3, visible: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 1 + visible, width, generator=seeded(seed)) + 0.5


@options
def test_score_follows_its_formula(options: dict[str, float]) -> None:
    teacher, student = tokens(8, batch=2, visible=5), tokens(12, batch=2, visible=5, seed=1)
    scores = consistency_score(student, log_relations(teacher, **options), **options)
    for b in range(2):
        divergence = 0.0
        for j in range(1, 6):
            p, q = (distribution(t[b].double(), j, **options) for t in (teacher, student))
            divergence += sum(a * math.log(a / c) for a, c in zip(p, q, strict=True))
        assert scores[b].item() == pytest.approx(-divergence / 5, abs=1e-6)


def distribution(rows: torch.Tensor, j: int, tau: float, standardise: bool) -> list[float]:
    cosines = [(rows[j] @ rows[k] / (rows[j].norm() * rows[k].norm())).item() for k in range(1, len(rows)) if k != j]
    if standardise:
        mean = sum(cosines) / len(cosines)
        spread = math.sqrt(sum((c - mean) ** 2 for c in cosines) / len(cosines))
        cosines = [(c - mean) / spread for c in cosines]
    weights = [math.exp(c / tau) for c in cosines]
    return [w / sum(weights) for w in weights]


@options
def test_teacher_itself_is_the_maximum_and_scores_zero(options: dict[str, float]) -> None:
    teacher = tokens()
    relations = log_relations(teacher, **options)
    assert consistency_score(teacher, relations, **options).abs().max() < 1e-6
    for seed in range(1, 20):
        assert (consistency_score(tokens(seed=seed), relations, **options) < -1e-3).all()


@options
def test_score_ignores_rotation_scale_and_class_token_of_the_student(options: dict[str, float]) -> None:
    relations = log_relations(tokens(), **options)
    student = tokens(16, seed=1)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=seeded(2))).Q
    changed = 7.5 * student @ rotation
    changed[:, 0] = 3.0
    torch.testing.assert_close(
        consistency_score(changed, relations, **options),
        consistency_score(student, relations, **options),
        rtol=0,
        atol=1e-5,
    )


def test_closer_student_scores_higher() -> None:
    teacher, noise = tokens(), tokens(seed=5)
    relations = log_relations(teacher)
    scores = [consistency_score(teacher + s * noise, relations).mean().item() for s in (0.0, 0.1, 0.3, 1.0)]
    assert scores == sorted(scores, reverse=True)


def test_score_of_an_image_does_not_depend_on_its_batch() -> None:
    relations, student = log_relations(tokens()), tokens(16, seed=1)
    together = consistency_score(student, relations)
    alone = torch.cat([consistency_score(student[b : b + 1], relations[b : b + 1]) for b in range(3)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_own_patch_is_left_out() -> None:
    teacher = tokens(visible=5)
    unit = torch.nn.functional.normalize(teacher[:, 1:], dim=-1)
    cosines = relation_logits(teacher, standardise=False)
    assert cosines.shape == (3, 5, 4)
    for j in range(5):
        others = [k for k in range(5) if k != j]
        torch.testing.assert_close(cosines[:, j], (unit[:, others] @ unit[:, j].unsqueeze(-1)).squeeze(-1))


def test_standardised_rows_have_mean_zero_and_variance_one_at_every_width() -> None:
    for width in (4, 64, 512):
        rows = relation_logits(tokens(width))
        assert rows.mean(-1).abs().max() < 1e-4
        assert (rows.var(-1, correction=0) - 1).abs().max() < 1e-4


def residual_stream(width: int, blocks: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Tokens (1, 1 + 49, width) after each block of a network to which every block adds noise."""
    return list(torch.randn(blocks, 1, 50, width, generator=generator).cumsum(0))


def scores_of_noise(blocks: int, **options: Any) -> np.ndarray:
    """Scores (seeds, widths 16, 48, 96) of random students, means over the blocks, against a random teacher."""
    rows = []
    for seed in range(60):
        generator = seeded(seed)
        taught = [log_relations(t, **options) for t in residual_stream(64, blocks, generator)]
        streams = [residual_stream(width, blocks, generator) for width in (16, 48, 96)]
        scores = [[consistency_score(t, r, **options) for t, r in zip(s, taught, strict=True)] for s in streams]
        rows.append([float(torch.cat(of_one).mean()) for of_one in scores])
    return np.array(rows)


@pytest.mark.parametrize("blocks", [1, 3])
def test_random_students_of_all_widths_score_alike(blocks: int) -> None:
    scores = scores_of_noise(blocks)
    assert np.ptp(scores.mean(axis=0)) < scores.std(axis=0, ddof=1).min()


@pytest.mark.parametrize("blocks", [1, 3])
def test_without_standardised_rows_random_students_score_by_their_width(blocks: int) -> None:
    scores = scores_of_noise(blocks, tau=0.1, standardise=False)
    assert np.diff(scores.mean(axis=0)).min() > 2 * scores.std(axis=0, ddof=1).max()


def test_equal_patches_are_related_equally_and_not_by_rounding() -> None:
    probabilities = log_relations(torch.full((1, 7, 12), 0.3)).exp()
    assert (probabilities - 1 / 5).abs().max() < 0.01


def test_too_few_visible_patches_are_refused() -> None:
    with pytest.raises(ValueError, match="3 visible patches, relations need at least 4"):
        relation_logits(tokens(visible=3))
    assert relation_logits(tokens(visible=4)).shape == (3, 4, 3)


def test_wrong_options_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature is 0"):
        relation_logits(tokens(), tau=0)
    with pytest.raises(ValueError, match=r"student relations \(3, 6, 5\), teacher \(3, 5, 4\)"):
        consistency_score(tokens(), log_relations(tokens(visible=5)))
