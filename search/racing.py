"""Racing: a candidate that cannot matter any more is dropped before it was looked at on all images.

All candidates are measured on the same images, so two of them are compared by the differences on each image, which
vary far less than the values do.  The images come in a random order; those seen so far are a sample without replacement
of the finite set whose mean is the score.  After each batch the paired differences to a fixed rival are tested: a
candidate whose mean is below the rival's by more than chance is out.  Racing is that of Maron and Moore 1994
("Hoeffding races", section 3); the paired test that of Moore and Lee 1994, as a bound by the range of the values is too
wide to be of use for divergences.

The test is Student's, one-sided, with the finite-population correction; it takes the mean of some dozens of differences
to be normally distributed.  Its level is the error probability of the whole search divided by the number of tests that
the search can make (Bonferroni): the probability that any candidate of the search is dropped that would have beaten its
rival on all images is at most the stated one, as far as the normal distribution holds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t as student_t

MIN_IMAGES = 30
"""Fewer differences are not tested: their mean is not normal enough."""

FloatArray = NDArray[np.float64]


class Race:
    """A rival that candidates must not be worse than.

    Args:
        rival: (N,) its value on each image, in the order in which images come; finite.
        error: probability that any of ``tests`` tests drops a candidate wrongly, above 0 and below 1.
        tests: how many there can be, at least 1.

    Raises:
        ValueError: with the argument that is out of range.
    """

    def __init__(self, rival: ArrayLike, *, error: float, tests: int) -> None:
        self._rival: FloatArray = np.asarray(rival, dtype=np.float64)
        if self._rival.ndim != 1 or not np.isfinite(self._rival).all():
            raise ValueError(f"rival: found {self._rival.shape} values, allowed is a finite one for each image")
        if not 0 < error < 1:
            raise ValueError(f"error: found {error}, allowed is above 0 and below 1")
        if tests < 1:
            raise ValueError(f"tests: found {tests}, allowed is at least 1")
        self._level = error / tests

    def __len__(self) -> int:
        return len(self._rival)

    def is_lost(self, values: ArrayLike) -> bool:
        """Whether a candidate with these values on the first n images is out.

        One that has been seen on all of them never is: its score is known. Values that are not finite never lose.

        Raises:
            ValueError: more values than the rival has.
        """
        seen = np.asarray(values, dtype=np.float64)
        n, whole = len(seen), len(self._rival)
        if n > whole:
            raise ValueError(f"values: found {n}, allowed is at most {whole}, one for each of the rival's")
        if n < MIN_IMAGES or n == whole:
            return False
        differences = seen - self._rival[:n]
        mean = float(differences.mean())
        if not mean < 0:
            return False
        left = (whole - n) / (whole - 1)
        error_of_mean = float(differences.std(ddof=1)) * math.sqrt(left / n)
        return error_of_mean == 0 or float(student_t.sf(-mean / error_of_mean, n - 1)) < self._level
