"""What consistency is blind to, and what it cannot exceed: proved on networks, after one and after several blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.architecture import Architecture
from models.distill import FeatureProjector
from models.extract import build_timm, extract_state
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from search.measures import Measure
from tests.unit.models.toys import seeded
from tests.unit.workers.training.toys import CPU, images
from workers.data.dataset import ImageSet
from workers.stages.scoring import MeasureScorer, ScoringSettings, TrainedParts

one_and_several_depths = pytest.mark.parametrize("depths", [(1.0,), (0.5, 0.75, 1.0)], ids=["last", "several"])


def network(width: int) -> Architecture:
    return Architecture(
        embed_dim=width,
        depth=4,
        num_heads=(1,) * 4,
        mlp_ratio=(2.0,) * 4,
        head_dim=16,
        img_size=16,
        patch_size=2,
        in_chans=1,
        num_classes=0,
    )


def pictures() -> ImageSet:
    drawn = np.random.default_rng(0).integers(0, 256, (4, 1, 16, 16), dtype=np.uint8)
    return ImageSet(drawn, np.arange(4), images().preprocessing)


def teacher(width: int) -> FrozenTeacher:
    return FrozenTeacher(build_timm(network(width), seeded(7)))


def measured(measure: Measure, parts: TrainedParts, taught: FrozenTeacher, **options: Any) -> float:
    settings = ScoringSettings(mask_ratio=0.75, batch_size=4, seed=0, **options)
    scorer = MeasureScorer(parts, taught, pictures(), (measure,), settings, CPU, poll=lambda: None)
    score = scorer.score(parts.supernet.largest, (measure,))[measure]
    assert score is not None
    return score


def bare(supernet: Supernet, taught: FrozenTeacher, **options: Any) -> float:
    return measured(Measure.CONSISTENCY_BARE, TrainedParts(supernet=supernet), taught, **options)


class Changed(Supernet):
    """A network whose tokens are rotated and scaled."""

    def features(
        self, x_BCHW: Tensor, arch: Architecture, ids_keep: Tensor | None = None, *, after: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """All of them by the same orthogonal matrix."""
        rotation = torch.linalg.qr(torch.randn(arch.embed_dim, arch.embed_dim, generator=seeded(3))).Q
        return tuple(7.5 * tokens @ rotation for tokens in super().features(x_BCHW, arch, ids_keep, after=after))


@one_and_several_depths
def test_nothing_is_more_consistent_with_a_teacher_than_itself(depths: tuple[float, ...]) -> None:
    student = Supernet(network(48), seeded(1))
    twin = build_timm(student.largest)
    twin.load_state_dict(extract_state(student.state_dict(), student.largest, student.largest))
    taught = FrozenTeacher(twin)
    assert bare(student, taught, depths=depths) == pytest.approx(0.0, abs=1e-5)
    others = [bare(Supernet(network(48), seeded(seed)), taught, depths=depths) for seed in range(2, 12)]
    assert max(others) < -0.1


@one_and_several_depths
def test_rotating_and_scaling_features_changes_nothing(depths: tuple[float, ...]) -> None:
    taught = teacher(32)
    plain, changed = (kind(network(48), seeded(1)) for kind in (Supernet, Changed))
    assert bare(changed, taught, depths=depths) == pytest.approx(bare(plain, taught, depths=depths), abs=1e-5)


@one_and_several_depths
def test_rotating_and_scaling_projected_features_changes_nothing(depths: tuple[float, ...]) -> None:
    taught, student = teacher(32), Supernet(network(48), seeded(1))
    plain, changed = (FeatureProjector(48, 32, seeded(2)) for _ in range(2))
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=seeded(3))).Q
    with torch.no_grad():
        changed.weight.copy_(7.5 * rotation @ plain.weight)
        changed.bias.copy_(7.5 * rotation @ plain.bias)
    scores = [
        measured(Measure.CONSISTENCY, TrainedParts(supernet=student, projector=p), taught, depths=depths)
        for p in (plain, changed)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
