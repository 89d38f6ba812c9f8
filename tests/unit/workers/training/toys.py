"""Small trainings on random images that run in milliseconds a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.architecture import Architecture
from models.export_record import Interpolation, Preprocessing
from models.extract import build_timm
from models.masked import DecoderConfig
from models.teacher import FrozenTeacher
from search.space import Space
from workers.data.dataset import ImageSet
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import Objective, TrainingLoop
from workers.training.masked import ImageBatches, MaskedDistillation, MaskedSettings
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine

CPU = Compute(torch.device("cpu"))

SPACE = Space(
    name="toy",
    embed_dim=(16, 24),
    depth=(1, 2, 3),
    num_heads=(1, 2),
    mlp_ratio=(1.0, 2.0),
    head_dim=8,
    img_size=8,
    patch_size=2,
    in_chans=1,
)

TEACHER = Architecture(
    embed_dim=20,
    depth=2,
    num_heads=(2, 2),
    mlp_ratio=(2.0, 2.0),
    head_dim=8,
    img_size=8,
    patch_size=2,
    in_chans=1,
    num_classes=0,
)

UNCHANGED = RandomCrop((1.0, 1.0), horizontal_flip=False)

DECODER = DecoderConfig(dim=16, depth=1, num_heads=2)


def images(count: int = 40, seed: int = 0) -> ImageSet:
    """Random grey images of 8 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)
    preprocessing = Preprocessing(size=8, mean=(0.5,), std=(0.25,), interpolation=Interpolation.BICUBIC)
    return ImageSet(pixels, np.arange(count), preprocessing)


def teacher(seed: int = 5) -> FrozenTeacher:
    """A random frozen network."""
    return FrozenTeacher(build_timm(TEACHER, torch.Generator().manual_seed(seed)))


def settings(**changes: Any) -> MaskedSettings:
    """Settings of the toy objective."""
    defaults: dict[str, Any] = {
        "space": SPACE,
        "mask_ratio": 0.5,
        "decoder": DECODER,
        "norm_targets": True,
        "beta": 1.0,
        "seed": 0,
        "stage": "supernet",
    }
    return MaskedSettings(**{**defaults, **changes})


def masked_loop(total_steps: int = 25, *, lr: float = 3e-3, **changes: Any) -> TrainingLoop[Tensor]:
    """A fresh loop that trains the toy supernet; equal arguments give equal loops."""
    return loop_of(MaskedDistillation(settings(**changes), teacher(), CPU), total_steps, lr)


def loop_of(objective: Objective[Tensor], total_steps: int = 25, lr: float = 3e-3) -> TrainingLoop[Tensor]:
    """A fresh loop over the toy images."""
    data = images()
    return TrainingLoop(
        objective=objective,
        batches=ImageBatches(data, BatchOrder(len(data), 8, 0, ("supernet",)), UNCHANGED, CPU),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=WarmupCosine.of_share(lr, 0.1, total_steps),
        compute=CPU,
        clip_grad=1.0,
        metrics_every=4,
    )


class Interrupt(Exception):
    """Raised by an observer to end a loop."""


@dataclass(slots=True)
class Watcher:
    """Keeps metrics, and ends the loop after ``stop_at`` steps."""

    stop_at: int | None = None
    rows: dict[int, Mapping[str, float]] = field(default_factory=dict)

    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """Stop in time."""
        if loop.step == self.stop_at:
            raise Interrupt

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Keep a row."""
        self.rows[step] = values
