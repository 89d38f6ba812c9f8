"""Measures subnets without labels: on fixed images under fixed masks, against the teacher's side kept in memory.

All candidates see the same images and masks, so their measures differ by the networks alone and never change. One
forward pass of the subnet gives all of them; all are larger when better, and but for the last one at most 0:

* ``consistency``: agreement of token relations with the teacher's, of the *projected* student tokens and the
  layer-normalised teacher tokens: the two sides that distillation brings together. A student's own channels are fixed
  by the training only up to the linear map that the projector undoes, and relations change under such a map.
* ``consistency_bare``: the same of the tokens as they are, on both sides (MaskTAS needs no projector for it).
* ``reconstruction``: minus the loss at the masked pixels, through the decoder of the supernet's training.
* ``feature``: minus the distillation loss. Narrow students have fewer columns of the projector, which it does not tell
  from worse features.
* ``effective_rank``: directions in which the features of the images vary, the means over visible patches after the
  final norm; 1 to d. It asks no teacher.

Relations may be compared after several shares of the blocks. The projector was trained after one of them alone (the
last, unless distillation read another), and is nevertheless applied to all: each block only adds to the residual
stream, so that a network's tokens keep one basis over its depth, and an intermediate token read by the map of the last
is an early guess of it (the "logit lens", Belrose et al. 2023, section 2). ``consistency_bare`` makes no such
assumption.

Legend: B images of a batch, V visible patches, d student width, D teacher width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.architecture import Architecture
from models.distill import DistillConfig, FeatureProjector, distillation_target, feature_loss
from models.masked import MaskedDecoder, PatchMask, random_masking, reconstruction_loss, visible_patches
from models.relations import block_at, consistency_score, log_relations
from models.spectrum import Moments, effective_rank
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from search.measures import Measure
from workers.data.dataset import ImageSet
from workers.training.compute import Compute
from workers.training.streams import PathPart, torch_stream

Positions = NDArray[np.int64]

Measures = dict[str, float | None]
"""By name; None where a measure is no finite number."""


_WITHOUT_TEACHER = {Measure.RECONSTRUCTION, Measure.EFFECTIVE_RANK}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSettings:
    """How candidates are measured.

    Attributes:
        mask_ratio: share of hidden patches.
        mask_seeds: independent masks of each image; measures are means over them.
        depths: shares of the blocks after which relations are compared, ascending.
        temperature: of the relations.
        standardise: give each row of relations mean 0 and variance 1.
        distill: as in the supernet's training, for the features and the projected tokens.
        norm_targets: as in the supernet's training, for the reconstruction.
        batch_size: images at once.
        seed: of the run.
    """

    mask_ratio: float
    mask_seeds: int = 1
    depths: tuple[float, ...] = (1.0,)
    temperature: float = 1.0
    standardise: bool = True
    distill: DistillConfig = field(default_factory=DistillConfig)
    norm_targets: bool = True
    batch_size: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParts:
    """What the supernet's training has left.

    Attributes:
        supernet: the shared weights.
        projector: to the teacher's width; None without distillation.
        decoder: of masked pixels; None without reconstruction.
    """

    supernet: Supernet
    projector: FeatureProjector | None = None
    decoder: MaskedDecoder | None = None


@dataclass(frozen=True, slots=True)
class _View:
    """A batch of images under one mask, with the teacher's side of each measure that has one."""

    positions: Positions
    mask: PatchMask
    relations: dict[Measure, list[Tensor]]  # by depth (B, V, V - 1)
    features: Tensor | None  # (B, 1 + V, D) after the block that distillation reads


class MeasureScorer:
    """Measures subnets of a trained supernet.

    Args:
        parts: what was trained.
        teacher: frozen.
        images: to measure on; none of them may have been trained on.
        measures: all that will be asked for.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
        poll: called after each batch of the teacher; may raise to stop.

    Raises:
        ValueError: a measure whose part is missing, or a mask that leaves too few patches.
    """

    def __init__(
        self,
        parts: TrainedParts,
        teacher: FrozenTeacher,
        images: ImageSet,
        measures: Sequence[Measure],
        settings: ScoringSettings,
        compute: Compute,
        poll: Callable[[], None],
    ) -> None:
        _check_parts(parts, measures)
        self._parts = parts
        self._images = images
        self._settings = settings
        self._compute = compute
        self.visible_patches = visible_patches(parts.supernet.largest.num_patches, settings.mask_ratio)
        self._views: list[_View] = []
        for view in self._teacher_views(teacher, set(measures)):
            self._views.append(view)
            poll()

    @torch.inference_mode()
    def score(
        self, arch: Architecture, measures: Sequence[Measure], poll: Callable[[], None] = lambda: None
    ) -> Measures:
        """The asked measures by name, means over images, masks and depths; ``poll`` is called after each batch."""
        averaged = [measure for measure in measures if measure is not Measure.EFFECTIVE_RANK]
        moments = Moments() if len(averaged) < len(measures) else None
        totals = torch.zeros(len(averaged), dtype=torch.float64)
        for view in self._views if measures else ():
            totals += self._sums(view, arch.with_classes(0), averaged, moments).cpu()
            poll()
        means = (totals / (len(self._images) * self._settings.mask_seeds)).tolist()
        found = dict(zip(averaged, means, strict=True))
        if moments is not None:
            found[Measure.EFFECTIVE_RANK] = effective_rank(moments.covariance())
        return {measure.value: found[measure] if math.isfinite(found[measure]) else None for measure in measures}

    def _sums(self, view: _View, arch: Architecture, measures: Sequence[Measure], moments: Moments | None) -> Tensor:
        """Sums over the images of a batch, float64, one of each measure; their features go into ``moments``."""
        parts, wanted = self._parts, {*measures, *((Measure.EFFECTIVE_RANK,) if moments is not None else ())}
        blocks = self._blocks(arch.depth)
        feature_block = block_at(self._settings.distill.layer.share, arch.depth)
        after = _needed_blocks(blocks, feature_block, arch.depth, wanted)
        sums: dict[Measure, Tensor] = {}
        images = self._images.batch(view.positions).to(self._compute.device)
        with self._compute.forward():
            tokens = dict(
                zip(after, parts.supernet.features(images, arch, view.mask.ids_keep, after=after), strict=True)
            )
            projected: dict[int, Tensor] = {}
            if parts.projector is not None and wanted & {Measure.CONSISTENCY, Measure.FEATURE}:
                projected = {block: parts.projector(tokens[block]) for block in after}
            if Measure.RECONSTRUCTION in wanted:
                sums[Measure.RECONSTRUCTION] = self._reconstruction(tokens[arch.depth], images, view.mask, arch)
            if moments is not None:
                moments.add(parts.supernet.final_norm(tokens[arch.depth], arch)[:, 1:].mean(dim=1))
        for measure, compared in ((Measure.CONSISTENCY, projected), (Measure.CONSISTENCY_BARE, tokens)):
            if measure in wanted:
                sums[measure] = self._consistency([compared[b] for b in blocks], view.relations[measure])
        if Measure.FEATURE in wanted:
            assert view.features is not None, "kept for the measures that the scorer was made for"
            sums[Measure.FEATURE] = -(
                feature_loss(projected[feature_block], view.features, self._settings.distill).double() * len(images)
            )
        return torch.stack([sums[measure] for measure in measures]) if measures else torch.zeros(0)

    def _consistency(self, student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        settings = self._settings
        scores = [
            consistency_score(one, other, tau=settings.temperature, standardise=settings.standardise)
            for one, other in zip(student, teacher, strict=True)
        ]
        return torch.stack(scores).mean(dim=0).double().sum()

    def _reconstruction(self, t_BTd: Tensor, images: Tensor, mask: PatchMask, arch: Architecture) -> Tensor:
        assert self._parts.decoder is not None, "checked for the measures that the scorer was made for"
        predicted = self._parts.decoder(self._parts.supernet.final_norm(t_BTd, arch), mask.ids_restore)
        # Every image hides equally many patches, so a batch's mean is the mean of its images.
        loss = reconstruction_loss(
            predicted, images, mask.hidden, arch.patch_size, norm_targets=self._settings.norm_targets
        )
        return -loss.double() * len(images)

    def _blocks(self, depth: int) -> list[int]:
        return [block_at(share, depth) for share in self._settings.depths]

    @torch.inference_mode()
    def _teacher_views(self, teacher: FrozenTeacher, measures: set[Measure]) -> Iterator[_View]:
        settings, device = self._settings, self._compute.device
        patches, total = self._parts.supernet.largest.num_patches, len(self._images)
        blocks = self._blocks(teacher.depth)
        feature_block = block_at(settings.distill.layer.share, teacher.depth)
        after = _needed_blocks(blocks, feature_block, teacher.depth, measures - _WITHOUT_TEACHER)
        for seed in range(settings.mask_seeds):
            path: tuple[PathPart, ...] = ("search", "mask", seed) if seed else ("search", "mask")
            drawn = random_masking(total, patches, self.visible_patches, torch_stream(settings.seed, *path))
            for start in range(0, total, settings.batch_size):
                positions = np.arange(start, min(start + settings.batch_size, total))
                mask = _rows(drawn, positions).to(device)
                tokens = self._teacher_tokens(teacher, positions, mask, after) if after else {}
                relations: dict[Measure, list[Tensor]] = {}
                if Measure.CONSISTENCY in measures:
                    targets = [distillation_target(tokens[b], settings.distill.target_norm) for b in blocks]
                    relations[Measure.CONSISTENCY] = self._relations(targets)
                if Measure.CONSISTENCY_BARE in measures:
                    relations[Measure.CONSISTENCY_BARE] = self._relations([tokens[b] for b in blocks])
                features = tokens[feature_block] if Measure.FEATURE in measures else None
                yield _View(positions, mask, relations, features)

    def _teacher_tokens(
        self, teacher: FrozenTeacher, positions: Positions, mask: PatchMask, after: Sequence[int]
    ) -> dict[int, Tensor]:
        images = self._images.batch(positions).to(self._compute.device)
        with self._compute.forward():
            return dict(zip(after, teacher.features(images, mask.ids_keep, after=after), strict=True))

    def _relations(self, tokens: Sequence[Tensor]) -> list[Tensor]:
        settings = self._settings
        return [log_relations(t, tau=settings.temperature, standardise=settings.standardise) for t in tokens]


def _needed_blocks(blocks: Sequence[int], feature_block: int, depth: int, measures: set[Measure]) -> list[int]:
    """Blocks after which tokens are read, ascending."""
    relations = measures & {Measure.CONSISTENCY, Measure.CONSISTENCY_BARE}
    needed = {*blocks} if relations else set()
    if Measure.FEATURE in measures:
        needed.add(feature_block)
    if measures & _WITHOUT_TEACHER:
        needed.add(depth)
    return sorted(needed)


def _rows(mask: PatchMask, positions: Positions) -> PatchMask:
    """The mask of some images."""
    first, last = int(positions[0]), int(positions[-1]) + 1
    return PatchMask(mask.ids_keep[first:last], mask.ids_restore[first:last], mask.hidden[first:last])


def _check_parts(parts: TrainedParts, measures: Sequence[Measure]) -> None:
    needs = {
        Measure.CONSISTENCY: parts.projector,
        Measure.FEATURE: parts.projector,
        Measure.RECONSTRUCTION: parts.decoder,
    }
    missing = [measure.value for measure in measures if measure in needs and needs[measure] is None]
    if missing:
        raise ValueError(f"measures {missing} need a projector or decoder, which the supernet's training did not leave")
