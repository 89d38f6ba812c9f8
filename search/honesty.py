"""What a search may claim of itself: each claim as data, as a verdict and as a sentence.

A score ranks networks by noise alone when other images would have ranked them otherwise, when a control ranks as well,
or when the supernet ranks a middle network above the largest one that contains it. Each of these is checked on numbers
that the search has anyway, or on a few more evaluations, and a check that fails says so in the result.

Scores of several networks on the same images are one table with a row for each network: the images are common, so that
what matters is how differences between rows vary over the images, not how the rows do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.ranking import LEVEL, Estimate, paired_difference

Json = dict[str, Any]
Scores = NDArray[np.float64]
"""Of one network on each image (images,)."""


class Verdict(StrEnum):
    """What a check has found."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One claim.

    Attributes:
        name: of the check.
        verdict: whether the claim holds; undecided where the data cannot tell.
        sentence: for people.
        data: the figures behind it, as JSON.
    """

    name: str
    verdict: Verdict
    sentence: str
    data: Json

    def to_json(self) -> Json:
        """All fields."""
        return {"check": self.name, "verdict": self.verdict.value, "sentence": self.sentence, "data": self.data}


@dataclass(frozen=True, slots=True)
class Spread:
    """How the scores of some networks differ, and how much of it other images would change.

    Attributes:
        networks: in the table.
        images: in the table.
        deviation: standard deviation of the networks' scores.
        noise: standard error of the difference of two networks, from the images.
        reliability: share of the variance of the networks' scores that the networks themselves cause (the intraclass
            correlation of means over common images; Shrout and Fleiss 1979, ICC(3,k)); at most 1.
    """

    networks: int
    images: int
    deviation: float
    noise: float
    reliability: float


def spread(table: NDArray[np.float64]) -> Spread | None:
    """Compare what networks differ by with what images make of it.

    Args:
        table: (networks, images) scores.

    Returns:
        None for fewer than two networks or images, and when all networks score alike.
    """
    networks, images = table.shape
    if min(networks, images) < 2:
        return None
    means = table.mean(axis=1)
    between = float(means.var(ddof=1)) * images
    if between == 0:
        return None
    residual = table - means[:, None] - table.mean(axis=0)[None, :] + table.mean()
    within = float((residual**2).sum()) / ((networks - 1) * (images - 1))
    return Spread(
        networks=networks,
        images=images,
        deviation=float(means.std(ddof=1)),
        noise=float(np.sqrt(2 * within / images)),
        reliability=1 - within / between,
    )


def indistinguishable(best: Scores, others: Sequence[Scores], rng: np.random.Generator) -> int:
    """How many of the others cannot be told from the best on these images."""
    differences = [paired_difference(best, other, rng) for other in others]
    return sum(difference is None or not difference.excludes_zero for difference in differences)


RELIABLE = 0.8
"""Share of the variance below which the order of networks is called noise (Nunnally's rule of thumb for rankings)."""


def spread_check(found: Spread | None, like_best: int, compared: int) -> Check:
    """Whether scores differ by more than other images would change.

    Args:
        found: over networks of the search.
        like_best: how many of the best networks cannot be told from the winner.
        compared: of how many.
    """
    if found is None:
        return Check("spread", Verdict.UNDECIDED, "The score has no value of each image, or no spread to judge.", {})
    data = {
        "networks": found.networks,
        "images": found.images,
        "deviation": found.deviation,
        "noise": found.noise,
        "reliability": found.reliability,
        "like_best": like_best,
        "compared": compared,
    }
    much = (
        f"Scores of {found.networks} networks have a standard deviation of {found.deviation:.3g}; the difference of "
        f"two has a standard error of {found.noise:.3g} from the choice of {found.images} images"
    )
    tied = f"; {like_best} of the {compared} networks next to the best cannot be told from it" if compared else ""
    if found.reliability >= RELIABLE:
        return Check("spread", Verdict.PASSED, f"{much}, so the order is the networks' own{tied}.", data)
    return Check("spread", Verdict.FAILED, f"{much}: much of the order is noise{tied}.", data)


def baseline_check(algorithm: str, evaluations: int, lead: float | None, difference: Estimate | None) -> Check:
    """Whether the search beat equally many random networks.

    Args:
        algorithm: of the search.
        evaluations: of the random search.
        lead: of the search's best score over the random search's.
        difference: the same with its interval over images; None where the score has no value of each image.
    """
    rival = f"the best of {evaluations} random networks"
    if lead is None:
        return Check("baseline", Verdict.UNDECIDED, "Nothing was scored at random to compare with.", {})
    data = {"evaluations": evaluations, "lead": lead, "difference": estimate_json(difference)}
    if lead <= 0:
        sentence = f"The {algorithm} search found nothing better than {rival} ({lead:.3g})."
        return Check("baseline", Verdict.FAILED, sentence, data)
    if difference is None:
        sentence = f"The {algorithm} search is {lead:.3g} ahead of {rival}; what noise does to that is not known."
        return Check("baseline", Verdict.UNDECIDED, sentence, data)
    if difference.low > 0:
        sentence = f"The {algorithm} search is ahead of {rival} by {difference} ({LEVEL:.0%} interval over images)."
        return Check("baseline", Verdict.PASSED, sentence, data)
    sentence = f"The {algorithm} search is no clear improvement on {rival}: the difference {difference} includes 0."
    return Check("baseline", Verdict.FAILED, sentence, data)


def inversion_check(largest: Scores | None, middle: Scores | None, rng: np.random.Generator) -> Check:
    """Whether the supernet ranks its largest network above a middle one.

    Weights that were shared well let a network do at least as well as one that is contained in it; an inversion tells
    of large networks that were trained too little, so that the search prefers small ones for no reason of theirs.
    """
    difference = None if largest is None or middle is None else paired_difference(largest, middle, rng)
    if difference is None:
        return Check("inversion", Verdict.UNDECIDED, "The score has no value of each image to compare sizes by.", {})
    data = {"largest_over_middle": estimate_json(difference)}
    if difference.low > 0:
        sentence = f"The largest network scores above the middle one by {difference}: sizes are in order."
        return Check("inversion", Verdict.PASSED, sentence, data)
    if difference.high < 0:
        sentence = (
            f"The largest network scores below the middle one ({difference}): the supernet's large networks are "
            "trained too little, or the score does not like size. Train it longer, or distrust scores across sizes."
        )
        return Check("inversion", Verdict.FAILED, sentence, data)
    sentence = f"The largest and the middle network cannot be told apart ({difference})."
    return Check("inversion", Verdict.UNDECIDED, sentence, data)


def ranking_checks(judged: Mapping[str, Any] | None) -> tuple[Check, Check]:
    """Whether the score ranks networks as a truth does that labels tell, and better than the parameter count does.

    Args:
        judged: the report's table of rank correlations, None without one.
    """
    if judged is None:
        none = "Without labels, or enough networks, nobody knows whether"
        return (
            Check("rank_correlation", Verdict.UNDECIDED, f"{none} the score ranks networks well.", {}),
            Check("parameter_count", Verdict.UNDECIDED, f"{none} the score ranks better than their size.", {}),
        )
    followed = next(row for row in judged["measures"] if row["name"] == judged["metric"])
    kendall, gain = read_estimate(followed["kendall"]), read_estimate(followed["gain_over_params"])
    about = f"over {judged['networks']} networks against {judged['truth']}"
    return _correlation(kendall, judged["metric"], about), _control(gain, judged["metric"], about)


def _correlation(kendall: Estimate | None, metric: str, about: str) -> Check:
    data = {"kendall": estimate_json(kendall)}
    if kendall is None:
        return Check("rank_correlation", Verdict.UNDECIDED, f"{metric} has no ranking {about}.", data)
    told = f"{metric} ranks with Kendall's tau {kendall} {about}"
    if kendall.low > 0:
        return Check("rank_correlation", Verdict.PASSED, f"{told}: better than chance.", data)
    return Check("rank_correlation", Verdict.FAILED, f"{told}: no better than chance.", data)


def _control(gain: Estimate | None, metric: str, about: str) -> Check:
    name, data = "parameter_count", {"gain": estimate_json(gain)}
    if gain is None:
        sentence = f"{metric} cannot be compared with the parameter count {about}: it is the same, or has no spread."
        return Check(name, Verdict.UNDECIDED, sentence, data)
    told = f"Kendall's tau of {metric} less that of the parameter count is {gain} {about}"
    if gain.low > 0:
        return Check(name, Verdict.PASSED, f"{told}: it beats this control.", data)
    return Check(name, Verdict.FAILED, f"{told}: it is not shown to beat this control.", data)


def holdout_check(measured: Mapping[str, Any] | None) -> Check:
    """That the holdout was looked at for one network only, which was chosen before.

    Args:
        measured: the report's figures on it, None where no network tells classes apart.
    """
    if measured is None:
        return Check("holdout", Verdict.UNDECIDED, "No network tells classes apart, so the holdout was not read.", {})
    data = {"images": measured["images"], "networks": 1}
    sentence = f"The holdout of {measured['images']} images was read for the winner alone, after it was chosen."
    return Check("holdout", Verdict.PASSED, sentence, data)


def estimate_json(estimate: Estimate | None) -> Json | None:
    """``{"value", "low", "high"}``."""
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def read_estimate(document: Mapping[str, float] | None) -> Estimate | None:
    """The inverse of :func:`estimate_json`."""
    return None if document is None else Estimate(document["value"], document["low"], document["high"])
