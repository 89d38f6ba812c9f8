"""The fixed images under their fixed masks, with the teacher's side of each measure.

Legend: B images of a batch, V visible patches, P values of a patch, D teacher width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.distill import distillation_target
from models.masked import PatchMask, random_masking, visible_patches
from models.relations import block_at, log_relations
from models.teacher import FrozenTeacher
from search.measures import Measure
from workers.data.dataset import ImageSet
from workers.stages.scoring.room import Room
from workers.stages.scoring.settings import ScoringSettings
from workers.training.compute import Compute
from workers.training.streams import PathPart, torch_stream

Positions = NDArray[np.int64]

WITHOUT_TEACHER = frozenset({Measure.RECONSTRUCTION, Measure.EFFECTIVE_RANK})


@dataclass(frozen=True, slots=True)
class View:
    """A batch of images under one mask, with the teacher's side of each measure that has one.

    Attributes:
        positions: of the images in the set.
        mask: of these images.
        relations: by measure, then by depth, (B, V, V - 1).
        features: (B, 1 + V, D), what projected tokens are to equal after the block that distillation reads; None when
            no measure asks.
    """

    positions: Positions
    mask: PatchMask
    relations: dict[Measure, list[Tensor]]
    features: Tensor | None

    def part(self, looks: slice) -> View:
        """Some of the images."""
        return View(
            self.positions[looks],
            self.mask.of(looks),
            {measure: [depth[looks] for depth in depths] for measure, depths in self.relations.items()},
            None if self.features is None else self.features[looks],
        )

    @staticmethod
    def joined(parts: Sequence[View]) -> View:
        """One view of the images of several, in their order."""
        first, masks = parts[0], [part.mask for part in parts]
        return View(
            np.concatenate([part.positions for part in parts]),
            PatchMask(
                torch.cat([mask.ids_keep for mask in masks]),
                torch.cat([mask.ids_restore for mask in masks]),
                torch.cat([mask.hidden for mask in masks]),
            ),
            {
                measure: [torch.cat([part.relations[measure][k] for part in parts]) for k in range(len(depths))]
                for measure, depths in first.relations.items()
            },
            None if first.features is None else torch.cat([_features(part) for part in parts]),
        )


def _features(view: View) -> Tensor:
    assert view.features is not None, "parts of one view have the same"
    return view.features


class Views:
    """All views, in a fixed order.

    Args:
        teacher: frozen.
        images: to measure on.
        num_patches: of an image.
        measures: all that will be asked for.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
        room: what to do when memory runs out.

    Raises:
        ValueError: a mask that leaves no patch.
    """

    def __init__(
        self,
        teacher: FrozenTeacher,
        images: ImageSet,
        num_patches: int,
        measures: Sequence[Measure],
        settings: ScoringSettings,
        compute: Compute,
        room: Room,
    ) -> None:
        self._room = room
        self._teacher: FrozenTeacher | None = teacher
        self._images = images
        self._num_patches = num_patches
        self._measures = set(measures)
        self._settings = settings
        self._compute = compute
        self.visible_patches = visible_patches(num_patches, settings.mask_ratio)

    @torch.inference_mode()
    def make(self, among: tuple[int, int] | None = None) -> Iterator[View]:
        """Compute them, one at a time: all, or those of a range whose end is excluded."""
        total, drawn = len(self._images), self._draw()
        for looks in islice(self._looks(), *(among or (None,))):
            rows = torch.from_numpy(looks)
            mask = PatchMask(drawn.ids_keep[rows], drawn.ids_restore[rows], drawn.hidden[rows])
            positions, mask = looks % total, mask.to(self._compute.device)
            make = partial(self._in_parts, positions, mask)
            yield self._room.fit(len(positions), make)

    def release_teacher(self) -> None:
        """Let go of the teacher, whose weights take memory; nothing can be computed any more."""
        self._teacher = None

    def positions(self) -> Iterator[Positions]:
        """Of the images of each view."""
        return (looks % len(self._images) for looks in self._looks())

    def _looks(self) -> Iterator[Positions]:
        """Looks of each view: numbers of an image under a mask, all images under the first mask coming first."""
        settings, total = self._settings, len(self._images)
        looks = np.arange(settings.mask_seeds * total)
        parts = np.split(looks, settings.mask_seeds)
        if settings.shuffled:
            # Images under all masks together, or those seen first would be a sample of one mask's.
            parts = [torch.randperm(len(looks), generator=torch_stream(settings.seed, "search", "order")).numpy()]
        for part in parts:
            for start in range(0, len(part), settings.batch_size):
                yield part[start : start + settings.batch_size]

    def _draw(self) -> PatchMask:
        """The masks of all looks."""
        settings = self._settings
        drawn: list[PatchMask] = []
        for seed in range(settings.mask_seeds):
            path: tuple[PathPart, ...] = ("search", "mask", seed) if seed else ("search", "mask")
            generator = torch_stream(settings.seed, *path)
            drawn.append(random_masking(len(self._images), self._num_patches, self.visible_patches, generator))
        return PatchMask(
            torch.cat([mask.ids_keep for mask in drawn]),
            torch.cat([mask.ids_restore for mask in drawn]),
            torch.cat([mask.hidden for mask in drawn]),
        )

    def _in_parts(self, positions: Positions, mask: PatchMask, parts: Sequence[slice]) -> View:
        made = [self._view(positions[part], mask.of(part)) for part in parts]
        return made[0] if len(made) == 1 else View.joined(made)

    def _view(self, positions: Positions, mask: PatchMask) -> View:
        settings, teacher = self._settings, self._teacher
        assert teacher is not None, "let go of only when all views are kept"
        blocks = [block_at(share, teacher.depth) for share in settings.depths]
        feature_block = block_at(settings.distill.layer.share, teacher.depth)
        asked = self._measures - WITHOUT_TEACHER
        needed = set(blocks) if asked - {Measure.FEATURE} else set()
        if Measure.FEATURE in asked:
            needed.add(feature_block)
        tokens = self._tokens(teacher, positions, mask, sorted(needed)) if needed else {}
        relations: dict[Measure, list[Tensor]] = {}
        if Measure.CONSISTENCY in asked:
            targets = [distillation_target(tokens[b], settings.distill.target_norm) for b in blocks]
            relations[Measure.CONSISTENCY] = self._relations(targets)
        if Measure.CONSISTENCY_BARE in asked:
            relations[Measure.CONSISTENCY_BARE] = self._relations([tokens[b] for b in blocks])
        features = None
        if Measure.FEATURE in asked:
            features = distillation_target(tokens[feature_block], settings.distill.target_norm)
        return View(positions, mask, relations, features)

    def _tokens(
        self, teacher: FrozenTeacher, positions: Positions, mask: PatchMask, after: Sequence[int]
    ) -> dict[int, Tensor]:
        images = self._images.batch(positions).to(self._compute.device)
        with self._compute.forward():
            return dict(zip(after, teacher.features(images, mask.ids_keep, after=after), strict=True))

    def _relations(self, tokens: Sequence[Tensor]) -> list[Tensor]:
        settings = self._settings
        return [log_relations(t, tau=settings.temperature, standardise=settings.standardise) for t in tokens]
