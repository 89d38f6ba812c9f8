"""A metric and a search space for ViTailor: `search.metric: feature_spread`, `space: shallow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.architecture import Architecture
from search.presets import Preset

if TYPE_CHECKING:  # the service reads the space and has no use for torch
    from workers.stages.custom_metric import Scorer, ScorerContext

SHALLOW = Preset(
    name="shallow",
    description="Networks of one or two blocks, for images of up to 64 pixels.",
    embed_dim=(32, 48),
    depth=(1, 2),
    num_heads=(1, 2),
    mlp_ratio=(1.0, 2.0),
    head_dim=16,
    default_img_size=32,
    grid_size=4,
)


def feature_spread(context: ScorerContext) -> Scorer:
    """How differently a candidate sees different images: the mean variance of its features over images."""
    positions = np.arange(min(64, len(context.images)))
    images = context.images.batch(positions).to(context.device)

    def score(arch: Architecture) -> float:
        return float(context.supernet(images, arch.with_classes(0)).var(dim=0).mean())

    return score
