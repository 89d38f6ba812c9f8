"""What the choice of images makes of scores: a few networks are scored image by image at the end of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.architecture import Architecture
from search.honesty import baseline_check, indistinguishable, inversion_check, spread, spread_check
from search.ranking import paired_difference
from workers.stages.context import Json
from workers.stages.search_context import SearchContext
from workers.training.streams import numpy_stream

SAMPLED = 16
"""Random networks that the spread is judged by; an image-by-image score costs as much as any other."""

RUNNERS_UP = 9
"""Networks next to the best that are compared with it."""


class PerImage(Protocol):
    """What scores image by image."""

    def per_image(self, arch: Architecture) -> NDArray[np.float64] | None:
        """The score of each image (images,), whose mean is the network's; None where it is no such mean."""
        ...


def noise_checks(
    ctx: SearchContext,
    scorer: PerImage,
    *,
    best: Sequence[Architecture],
    sample: Sequence[Architecture],
    rival: Architecture | None,
    evaluations: int,
    lead: float | None,
) -> list[Json]:
    """Checks of spread, baseline and inversion.

    Args:
        ctx: of the search.
        scorer: of the same metric as the search.
        best: networks of the search, the best first.
        sample: random networks of the search.
        rival: the best of the random search, None without one.
        evaluations: of the random search.
        lead: of the best score over the random search's, None without one.
    """
    rng = numpy_stream(ctx.seed, "search", "noise")
    winner = scorer.per_image(best[0])
    checks = [_spread(scorer, best, sample, winner, rng)]
    if ctx.spec.search.baseline == "random":
        random = None if rival is None else scorer.per_image(rival)
        difference = None if winner is None or random is None else paired_difference(winner, random, rng)
        checks.append(baseline_check(ctx.spec.search.algorithm, evaluations, lead, difference).to_json())
    sizes = [scorer.per_image(arch) for arch in (ctx.space.largest(), ctx.space.centre())]
    checks.append(inversion_check(sizes[0], sizes[1], rng).to_json())
    return checks


def _spread(
    scorer: PerImage,
    best: Sequence[Architecture],
    sample: Sequence[Architecture],
    winner: NDArray[np.float64] | None,
    rng: np.random.Generator,
) -> Json:
    if winner is None:
        return spread_check(None, 0, 0).to_json()
    rows = [scores for arch in sample[:SAMPLED] if (scores := scorer.per_image(arch)) is not None]
    others = [scores for arch in best[1 : 1 + RUNNERS_UP] if (scores := scorer.per_image(arch)) is not None]
    table = np.stack(rows) if rows else np.empty((0, 0))
    return spread_check(spread(table), indistinguishable(winner, others, rng), len(others)).to_json()
