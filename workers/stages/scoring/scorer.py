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

Legend: d student width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from models.architecture import Architecture
from models.supernet import KeptCuts
from models.teacher import FrozenTeacher
from search.measures import Measure
from search.racing import Race
from workers.data.dataset import ImageSet
from workers.stages.scoring.population import Population
from workers.stages.scoring.readout import Batch
from workers.stages.scoring.room import Room
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts
from workers.stages.scoring.views import View, Views
from workers.training.compute import Compute

LOOKS = "looks"
"""Beside the measures of a candidate that was dropped early: on how many images under a mask they were taken."""

BatchSums = list[list[float]]
"""Of one candidate: for each batch the float64 sums over its images of each measure, in the order that was asked."""

_KEPT_CUTS_BYTES = 256 * 2**20
"""Of copied weights; the cuts of a small supernet fit, those of a large one take little beside its layers."""


class MeasureScorer:
    """Measures subnets of a trained supernet.

    Args:
        parts: what was trained.
        teacher: frozen.
        images: to measure on; none of them may have been trained on.
        measures: all that will be asked for.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
        poll: called after each batch of the teacher while its side is cached; may raise to stop.
        on_split: told how many images are measured at once when memory has run out with more. Measures are then equal
            up to rounding. None: memory that runs out is an error.

    Attributes:
        parts: as above.
        images: as above.
        visible_patches: of each image.

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
        on_split: Callable[[int], None] | None = None,
    ) -> None:
        parts.check(measures)
        self.parts = parts
        self.images = images
        self._settings = settings
        self._compute = compute
        self._room = Room(on_split)
        patches = parts.supernet.largest.num_patches
        self._made = Views(teacher, images, patches, measures, settings, compute, self._room)
        self.visible_patches = self._made.visible_patches
        self._cached: list[View] = []
        for view in self._made.make() if settings.teacher_cache else ():
            self._cached.append(view)
            poll()
        if settings.teacher_cache:
            self._made.release_teacher()

    def score(
        self, arch: Architecture, measures: Sequence[Measure], poll: Callable[[], None] = lambda: None
    ) -> Measures:
        """The measures of one candidate, see :meth:`score_all`."""
        return self.score_all([arch], [measures], poll)[0]

    @torch.inference_mode()
    def score_all(
        self,
        archs: Sequence[Architecture],
        measures: Sequence[Sequence[Measure]],
        poll: Callable[[], None] = lambda: None,
        race: tuple[Measure, Race] | None = None,
    ) -> list[Measures]:
        """The asked measures of each candidate by name, means over images, masks and depths.

        They do not depend on which candidates are measured together, to the last bit.

        Args:
            archs: candidates; neighbours that begin alike share the work.
            measures: asked of each.
            poll: called after each batch of each candidate, or several of them; may raise to stop.
            race: a measure and the race that is run on it. A candidate that loses it has the means over the looks that
                it has taken, and their number under :data:`LOOKS`.
        """
        results: list[Measures] = [{} for _ in archs]
        asked = [i for i, wanted in enumerate(measures) if wanted]
        if not asked:
            return results
        population = self._population([archs[i] for i in asked], [measures[i] for i in asked], race and race[0])
        racing, looks = list(range(len(asked))), 0
        for view in self._views():
            self._look(population, view, poll)
            looks += len(view.positions)
            lost = [i for i in racing if race is not None and race[1].is_lost(population.values(i))]
            if lost:
                for i in lost:
                    results[asked[i]] = {**population.result(i, looks), LOOKS: float(looks)}
                racing = [i for i in racing if i not in set(lost)]
                population.keep(racing)
        for i in racing:
            results[asked[i]] = population.result(i, looks)
        return results

    @torch.inference_mode()
    def sums(
        self,
        archs: Sequence[Architecture],
        measures: Sequence[Sequence[Measure]],
        batches: tuple[int, int],
        poll: Callable[[], None] = lambda: None,
    ) -> list[BatchSums]:
        """What each of some batches of images adds to the measures of each candidate; :meth:`from_sums` ends it.

        Args:
            archs, measures, poll: see :meth:`score_all`; every candidate is asked for at least one measure.
            batches: range of the views, the end excluded.

        Raises:
            ValueError: the effective rank is asked for, which is no sum.
        """
        if any(Measure.EFFECTIVE_RANK in wanted for wanted in measures):
            raise ValueError(f"{Measure.EFFECTIVE_RANK} is no sum over images")
        population = self._population(archs, measures, None)
        found: list[BatchSums] = [[] for _ in archs]
        for view in self._views(batches):
            self._look(population, view, poll)
            for i, rows in enumerate(found):
                rows.append(population.take_sums(i))
        return found

    def from_sums(self, measures: Sequence[Measure], sums: BatchSums) -> Measures:
        """The measures of a candidate from what all batches added, in their order: to the same bits as undivided."""
        total = [0.0] * len(measures)
        for row in sums:
            total = [before + added for before, added in zip(total, row, strict=True)]
        looks = self._settings.mask_seeds * len(self.images)
        means = [summed / looks for summed in total]
        return {m.value: mean if math.isfinite(mean) else None for m, mean in zip(measures, means, strict=True)}

    @torch.inference_mode()
    def of_each_look(
        self, arch: Architecture, measure: Measure, poll: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64]:
        """A measure that is a mean over images, on each image under each mask, in the order in which they come.

        Raises:
            ValueError: for the effective rank, which is none.
        """
        if measure is Measure.EFFECTIVE_RANK:
            raise ValueError(f"{measure} is no mean over images")
        population = self._population([arch], [(measure,)], measure)
        for view in self._views():
            self._look(population, view, poll)
        return population.values(0)

    def of_each_image(
        self, arch: Architecture, measure: Measure, poll: Callable[[], None] = lambda: None
    ) -> NDArray[np.float64]:
        """A measure on each image (M,), the mean over its masks, in the order of the images.

        Raises:
            ValueError: as :meth:`of_each_look`.
        """
        images = np.concatenate([*self._made.positions()])
        summed = np.bincount(images, weights=self.of_each_look(arch, measure, poll), minlength=len(self.images))
        return summed / self._settings.mask_seeds

    @property
    def views(self) -> int:
        """Batches of images that each candidate is measured on."""
        return sum(1 for _ in self._made.positions())

    def _look(self, population: Population, view: View, poll: Callable[[], None]) -> None:
        def look(parts: Sequence[slice]) -> None:
            for part in parts:
                population.look_at(self._batch(view if len(parts) == 1 else view.part(part)), poll)

        self._room.fit(len(view.positions), look, population.state())

    def _population(
        self, archs: Sequence[Architecture], measures: Sequence[Sequence[Measure]], follow: Measure | None
    ) -> Population:
        kept = KeptCuts(self.parts.supernet, _KEPT_CUTS_BYTES) if self._settings.shared_prefixes else None
        bare = [arch.with_classes(0) for arch in archs]
        return Population(bare, measures, self.parts, kept, self._settings, self._compute, follow)

    def _views(self, batches: tuple[int, int] | None = None) -> Iterator[View]:
        if not self._settings.teacher_cache:
            return self._made.make(batches)
        return iter(self._cached if batches is None else self._cached[slice(*batches)])

    def _batch(self, view: View) -> Batch:
        images = self.images.batch(view.positions).to(self._compute.device)
        return Batch(view, images, self.parts.supernet.largest.patch_size, self._settings.norm_targets)
