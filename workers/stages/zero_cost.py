"""Zero-cost warm start: of many random members, those that promise most before anything is trained.

They end the first generation of a search and are scored like all others, so that a measure that promises wrongly costs
half a generation and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import rankdata

from models.architecture import Architecture, Genotype
from models.supernet import Supernet
from models.zero_cost import DSS_CLASSES, az_nas, dss, with_absolute_weights
from search.constraints import feasible_set
from search.cost import macs
from search.random_search import RandomSearch
from service.jobs.spec import ZeroCostSpec
from workers.stages.search_context import SearchContext
from workers.training.streams import numpy_stream, torch_stream

Figures = list[float]
"""The parts of a measure for one network; larger is better."""


class ZeroCostMeasure:
    """One measure, of slices of a supernet with fresh weights.

    Args:
        ctx: of the search.
        asked: which measure, and on how many images.
    """

    def __init__(self, ctx: SearchContext, asked: ZeroCostSpec) -> None:
        self._ctx = ctx
        self._asked = asked
        largest = ctx.student.with_classes(DSS_CLASSES if asked.measure == "dss" else 0)
        supernet = Supernet(largest, torch_stream(ctx.seed, "search", "zero_cost", "weights")).to(ctx.compute.device)
        self._supernet = with_absolute_weights(supernet) if asked.measure == "dss" else supernet
        shape = (asked.images, largest.in_chans, largest.img_size, largest.img_size)
        noise = torch.randn(shape, generator=torch_stream(ctx.seed, "search", "zero_cost", "images"))
        self._images = noise.to(ctx.compute.device)

    def of(self, arch: Architecture) -> Figures:
        """The parts of the measure: of AZ-NAS expressivity, trainability and MACs, of DSS itself."""
        if self._asked.measure == "dss":
            return [dss(self._supernet, arch)]
        genes = ",".join(str(float(gene)) for gene in arch.genotype)
        signs = torch_stream(self._ctx.seed, "search", "zero_cost", "signs", genes)
        parts = az_nas(self._supernet, arch, self._images, signs)
        return [parts.expressivity, parts.trainability, float(macs(arch))]


def zero_cost_seeds(ctx: SearchContext, asked: ZeroCostSpec, places: int) -> list[Genotype]:
    """The best of ``asked.candidates`` random members within the limits, the best first.

    Resumable after every member: until the search itself has a state, that of the stage holds the figures.

    Raises:
        BudgetReached, StopRequested: see :meth:`workers.stages.context.Context.poll`.
    """
    drawn = _members(ctx, asked.candidates)
    figures: list[Figures] = list(ctx.state.get("zero_cost", []))
    measure = ZeroCostMeasure(ctx, asked)
    for genotype in drawn[len(figures) :]:
        figures.append(measure.of(ctx.space.decode(genotype)))
        ctx.safe_point(lambda: ctx.checkpoint({"zero_cost": figures}))
    return best_of(drawn, figures)[:places]


def best_of(drawn: Sequence[Genotype], figures: Sequence[Figures]) -> list[Genotype]:
    """Members by the sum of the logarithms of their ranks in each part (AZ-NAS, section 3.3), the best first."""
    total = log_ranks(figures)
    return [drawn[i] for i in np.argsort(-total, kind="stable")]


def log_ranks(figures: Sequence[Figures]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Sum over the parts of ``log(rank / n)``, the best rank being n."""
    parts = np.asarray(figures, np.float64).reshape(len(figures), -1)
    total: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log(rankdata(parts, axis=0) / max(1, len(parts))).sum(
        axis=1
    )
    return total


def control_column(ctx: SearchContext, asked: ZeroCostSpec, networks: Sequence[Architecture]) -> list[float]:
    """The measure as a control of the report, of each network."""
    measure = ZeroCostMeasure(ctx, asked)
    return [float(total) for total in log_ranks([measure.of(arch) for arch in networks])]


def _members(ctx: SearchContext, count: int) -> list[Genotype]:
    """Distinct random members within the limits; fewer when there are no more."""
    feasible = feasible_set(ctx.space, ctx.constraints, len(ctx.classes), ctx.table)
    rng = numpy_stream(ctx.seed, "search", "zero_cost", "members")
    draw = RandomSearch(feasible, population=count, generations=0, rng=rng)
    return [proposal.genotype for proposal in draw.ask()]
