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

from collections.abc import Callable, Iterator, Sequence

import torch

from models.architecture import Architecture
from models.supernet import KeptCuts
from models.teacher import FrozenTeacher
from search.measures import Measure
from workers.data.dataset import ImageSet
from workers.stages.scoring.population import Population
from workers.stages.scoring.readout import Batch
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts
from workers.stages.scoring.views import View, Views
from workers.training.compute import Compute

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
        parts.check(measures)
        self._parts = parts
        self._images = images
        self._settings = settings
        self._compute = compute
        self._made = Views(teacher, images, parts.supernet.largest.num_patches, measures, settings, compute)
        self.visible_patches = self._made.visible_patches
        self._cached: list[View] = []
        for view in self._made.make() if settings.teacher_cache else ():
            self._cached.append(view)
            poll()

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
    ) -> list[Measures]:
        """The asked measures of each candidate by name, means over images, masks and depths.

        They do not depend on which candidates are measured together, to the last bit.

        Args:
            archs: candidates; neighbours that begin alike share the work.
            measures: asked of each.
            poll: called after each batch of each candidate, or several of them; may raise to stop.
        """
        results: list[Measures] = [{} for _ in archs]
        asked = [i for i, wanted in enumerate(measures) if wanted]
        if asked:
            population = Population(
                [archs[i].with_classes(0) for i in asked],
                [measures[i] for i in asked],
                self._parts,
                KeptCuts(self._parts.supernet, _KEPT_CUTS_BYTES) if self._settings.shared_prefixes else None,
                self._settings,
                self._compute,
            )
            for view in self._views():
                population.look_at(self._batch(view), poll)
            found = population.results(len(self._images) * self._settings.mask_seeds)
            for i, one in zip(asked, found, strict=True):
                results[i] = one
        return results

    def _views(self) -> Iterator[View]:
        return iter(self._cached) if self._settings.teacher_cache else self._made.make()

    def _batch(self, view: View) -> Batch:
        images = self._images.batch(view.positions).to(self._compute.device)
        return Batch(view, images, self._parts.supernet.largest.patch_size, self._settings.norm_targets)
