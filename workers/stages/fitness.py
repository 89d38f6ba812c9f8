"""The score that a search follows: a measure of the candidate, several fused, or a control that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from models.architecture import Architecture
from search.fusion import LogRankFusion
from search.measures import FUSED, REFERENCE_NETWORKS, Control, Measure
from search.racing import Race
from workers.stages.custom_metric import CustomMetric, ScorerContext
from workers.stages.scorers import plan_of, scorer_of
from workers.stages.scoring import LOOKS, Measures
from workers.stages.search_context import SearchContext
from workers.stages.shards.crew import Crew, crew_of
from workers.training.streams import numpy_stream


class Fitness:
    """Measures candidates and says what their score is.

    Args:
        ctx: after the supernet.

    Attributes:
        images: number of images that candidates are measured on.
        visible_patches: of each of them.
    """

    def __init__(self, ctx: SearchContext) -> None:
        spec = ctx.spec.search
        assert spec.metric is not None, "filled by service.jobs.resolve"
        self._ctx = ctx
        self._metric: str = spec.metric
        self._fused = tuple(spec.fusion or ())
        self._fusion: LogRankFusion | None = None
        self._race: tuple[Measure, Race] | None = None
        self._plan = plan_of(ctx)
        self._scorer = scorer_of(ctx, may_split=True)
        self._crew: Crew | None = None
        self._custom: CustomMetric | None = None
        if self._metric not in (*Measure, FUSED, *Control):
            context = ScorerContext(
                supernet=self._scorer.parts.supernet,
                images=self._scorer.images,
                device=ctx.compute.device,
                seed=ctx.seed,
            )
            self._custom = CustomMetric(self._metric, context)
        self.images = len(self._scorer.images)
        self.visible_patches = self._scorer.visible_patches

    def refer_to(self, first: Sequence[Measures]) -> None:
        """Fix the networks among which measures are ranked: those of the random first generation, in its order.

        Must come before the first score, and is the same in each attempt, so that a score never changes.
        """
        if self._metric == FUSED:
            self._fusion = LogRankFusion(self._fused, first[:REFERENCE_NETWORKS])

    @contextmanager
    def shared_out(self) -> Iterator[None]:
        """Other processes and workers take part in :meth:`measure` while this is entered, if the spec asks for them."""
        with crew_of(self._ctx, self._scorer) as self._crew:
            try:
                yield
            finally:
                self._crew = None

    def measure(
        self, archs: Sequence[Architecture], *, judged: Sequence[bool], poll: Callable[[], None]
    ) -> list[Measures]:
        """Measures of each candidate by name: all of them of those that the report is to judge the measures by."""
        wanted = [self._plan.judged if all_of_them else self._plan.every for all_of_them in judged]
        if self._crew is None:
            found = self._scorer.score_all(archs, wanted, poll, self._race)
        else:
            assert self._race is None, "refused by service.jobs.resolve"
            found = self._crew.measure(archs, wanted, poll)
        if self._custom is None:
            return found
        scored: list[Measures] = []
        for arch, measures in zip(archs, found, strict=True):
            scored.append({**measures, self._metric: self._custom.score(arch)})
            poll()
        return scored

    def per_image(self, arch: Architecture) -> NDArray[np.float64] | None:
        """The followed measure of a candidate on each image (M,), means over masks and depths.

        Their mean is the score, up to rounding. None where the score is no mean over images: of several fused
        measures, the effective rank and controls.
        """
        measure = averaged_measure(self._metric)
        return None if measure is None else self._scorer.of_each_image(arch, measure, self._ctx.poll)

    @property
    def races(self) -> bool:
        """Whether candidates may be dropped early now."""
        return self._race is not None

    def race_against(self, rival: Architecture | None, *, tests: int, poll: Callable[[], None]) -> None:
        """Drop candidates of the next generation as soon as they are worse than this one; None drops none.

        Args:
            rival: a candidate that was measured on all images, and has a score.
            tests: how many tests there can be in the whole search.
            poll: called after each batch; may raise to stop.
        """
        measure, error = averaged_measure(self._metric), self._ctx.spec.search.evaluation.racing
        self._race = None
        if rival is not None and error is not None:
            assert measure is not None, "refused by service.jobs.resolve"
            values = self._scorer.of_each_look(rival, measure, poll)
            self._race = (measure, Race(values, error=error, tests=tests))

    @property
    def views(self) -> int:
        """Batches that a candidate is measured on."""
        return self._scorer.views

    def score(self, arch: Architecture, measures: Measures) -> float | None:
        """What the search maximises; None when it is no finite number."""
        if self._metric in set(Control):
            return control(self._ctx, Control(self._metric), arch)
        if self._metric == FUSED:
            assert self._fusion is not None, "refer_to comes before the first score"
            return self._fusion.score(measures)
        return None if LOOKS in measures else measures[self._metric]


def averaged_measure(metric: str) -> Measure | None:
    """The measure that a metric follows, if it is a mean over images; None if it is another figure."""
    means = {measure.value: measure for measure in Measure if measure is not Measure.EFFECTIVE_RANK}
    return means.get(metric)


def control(ctx: SearchContext, name: Control, arch: Architecture) -> float:
    """A figure of an architecture that no network is needed for; see :class:`search.measures.Control`."""
    match name:
        case Control.PARAMS:
            return ctx.costs(arch)["params_m"]
        case Control.WIDTH:
            return float(arch.embed_dim)
        case Control.RANDOM:
            genes = ",".join(str(float(gene)) for gene in arch.genotype)
            return float(numpy_stream(ctx.seed, "search", "random", genes).random())
        case other:
            assert_never(other)
