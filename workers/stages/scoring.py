"""Scores subnets without labels: on fixed images under fixed masks, against relations of the teacher kept in memory.

All candidates see the same images and masks, so their scores differ by the networks alone, and a score never changes.

Relations are taken where distillation has made student and teacher comparable: of the projected student tokens and the
layer-normalised teacher tokens.  A student's own channels are fixed by the training only up to the linear map that the
projector undoes, and relations change under such a map.  Measured on 8-pixel digits with 40 networks of ``micro`` below
0.2 M parameters, relations of the bare tokens rank *against* the validation loss after a short fine-tuning (Kendall's
tau -0.26), those of projected tokens with it (0.73; the parameter count reaches 0.53).  A supernet that was trained
without a teacher has no projector; its bare tokens are all there is.

Legend: M images, V visible patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.architecture import Architecture
from models.distill import FeatureProjector, distillation_target
from models.masked import random_masking, visible_patches
from models.relations import consistency_score, log_relations
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from workers.data.dataset import ImageSet
from workers.training.compute import Compute
from workers.training.streams import torch_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSettings:
    """How candidates are scored.

    Attributes:
        mask_ratio: share of hidden patches; that of the supernet's training.
        temperature: of the relations.
        batch_size: images at once.
        seed: of the run.
    """

    mask_ratio: float
    temperature: float
    batch_size: int
    seed: int


@dataclass(frozen=True, slots=True)
class _Batch:
    positions: np.ndarray[tuple[int], np.dtype[np.int64]]
    ids_keep: Tensor
    teacher_log_relations: Tensor


class ConsistencyScorer:
    """Agreement of a subnet's patch relations with the teacher's: minus a Kullback-Leibler divergence, at most 0.

    Args:
        supernet: trained shared weights.
        teacher: frozen.
        projector: trained with the supernet; None when it learned without a teacher.
        images: the ``M`` images to score on.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
        poll: called after each batch of the teacher's relations; may raise to stop.
    """

    def __init__(
        self,
        supernet: Supernet,
        teacher: FrozenTeacher,
        projector: FeatureProjector | None,
        images: ImageSet,
        settings: ScoringSettings,
        compute: Compute,
        poll: Callable[[], None],
    ) -> None:
        self._supernet = supernet
        self._projector = projector
        self._images = images
        self._settings = settings
        self._compute = compute
        patches = supernet.largest.num_patches
        self.visible_patches = visible_patches(patches, settings.mask_ratio)
        generator = torch_stream(settings.seed, "search", "mask")
        ids_keep = random_masking(len(images), patches, self.visible_patches, generator).ids_keep
        self._batches: list[_Batch] = []
        for batch in self._teacher_batches(teacher, ids_keep):
            self._batches.append(batch)
            poll()

    @torch.inference_mode()
    def score(self, arch: Architecture, poll: Callable[[], None] = lambda: None) -> float | None:
        """Mean over the images; None when it is no finite number. ``poll`` is called after each batch."""
        total = 0.0
        for batch in self._batches:
            images = self._images.batch(batch.positions).to(self._compute.device)
            with self._compute.forward():
                tokens = self._supernet.tokens(images, arch.with_classes(0), batch.ids_keep)
                if self._projector is not None:
                    tokens = self._projector(tokens)
            scores = consistency_score(tokens, batch.teacher_log_relations, tau=self._settings.temperature)
            total += scores.double().sum().item()
            poll()
        mean = total / len(self._images)
        return mean if math.isfinite(mean) else None

    @torch.inference_mode()
    def _teacher_batches(self, teacher: FrozenTeacher, ids_keep: Tensor) -> Iterator[_Batch]:
        for start in range(0, len(self._images), self._settings.batch_size):
            positions = np.arange(start, min(start + self._settings.batch_size, len(self._images)))
            kept = ids_keep[start : start + len(positions)].to(self._compute.device)
            images = self._images.batch(positions).to(self._compute.device)
            with self._compute.forward():
                tokens = distillation_target(teacher.visible_tokens(images, kept))
            yield _Batch(positions, kept, log_relations(tokens, tau=self._settings.temperature))
