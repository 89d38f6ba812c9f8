"""Divides a dataset into train, validation and holdout, the same way in every job.

The division depends on the dataset's content and on the fractions, never on a job's seed: nobody can draw a lucky
holdout, and accuracies of different jobs compare. It is stratified by class, also when a job ignores the labels, since
the holdout is a property of the dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import DatasetInvalid
from workers.data.blob import NO_LABEL, SplitName

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of each part, ascending and disjoint.

    ``unused`` holds rows of an official validation or test split that have no label although the dataset is labelled:
    nothing can be measured on them, and training on test images would be wrong.
    """

    train: Rows
    val: Rows
    holdout: Rows
    unused: Rows


def split_dataset(
    digest: str,
    labels: NDArray[np.int64],
    official: Sequence[SplitName | None],
    *,
    val_fraction: float,
    holdout_fraction: float,
) -> Split:
    """Divide ``N`` rows.

    Official test and validation splits are taken as they are. What is missing is set aside from the other rows: first
    the holdout, then the validation part, so that another ``val_fraction`` leaves the holdout as it is. Each class
    gives its share up to rounding, and keeps at least one image for training: a class with a single image is only
    trained on.

    Args:
        digest: of the dataset.
        labels: int64 (N,), ``NO_LABEL`` where unknown.
        official: N official splits.
        val_fraction: share of the rows without an official part.
        holdout_fraction: likewise.

    Raises:
        DatasetInvalid: when a part would be empty.
    """
    labelled = bool((labels != NO_LABEL).any())
    measurable = (labels != NO_LABEL) if labelled else np.ones(len(labels), dtype=bool)
    test = np.array([part is SplitName.TEST for part in official], dtype=bool)
    val = np.array([part is SplitName.VAL for part in official], dtype=bool)
    pool = ~(test | val)
    # Rows without a label in a labelled dataset help pretraining, but cannot be measured on.
    strata = _strata(digest, labels, pool & measurable)
    total = sum(map(len, strata))
    taken = [0] * len(strata)
    holdout = np.flatnonzero(test & measurable)
    if not len(holdout):
        holdout = _set_aside(strata, taken, _count(holdout_fraction, total))
    val_rows = np.flatnonzero(val & measurable)
    if not len(val_rows):
        val_rows = _set_aside(strata, taken, _count(val_fraction, total))
    train = np.setdiff1d(np.flatnonzero(pool), np.concatenate((holdout, val_rows)), assume_unique=True)
    for name, rows in (("training", train), ("validation", val_rows), ("holdout", holdout)):
        if not len(rows):
            raise DatasetInvalid(
                f"the {name} part would be empty: {len(labels)} images, of which {total} can be divided, in "
                f"{len(strata)} classes. Add images, or name other fractions"
            )
    return Split(train=train, val=val_rows, holdout=holdout, unused=np.flatnonzero((test | val) & ~measurable))


def _strata(digest: str, labels: NDArray[np.int64], members: NDArray[np.bool_]) -> list[Rows]:
    """Rows of each class in a fixed random order.

    Ordered by hash and not by a generator of numpy, whose streams may change between versions: a holdout must stay
    the same for years.
    """
    rows = np.flatnonzero(members)
    keys = {row: hashlib.blake2b(f"{digest}:{row}".encode(), digest_size=16).digest() for row in rows.tolist()}
    return [
        np.array(sorted(rows[labels[rows] == label].tolist(), key=keys.__getitem__), dtype=np.int64)
        for label in np.unique(labels[rows])
    ]


def _count(fraction: float, total: int) -> int:
    return max(1, round(fraction * total))


def _set_aside(strata: list[Rows], taken: list[int], wanted: int) -> Rows:
    """Take ``wanted`` rows in all off the front of the strata, in proportion to their sizes; updates ``taken``."""
    sizes = [len(rows) for rows in strata]
    shares = _apportion(wanted, sizes, [max(0, n - t - 1) for n, t in zip(sizes, taken, strict=True)])
    parts = []
    for i, (rows, share) in enumerate(zip(strata, shares, strict=True)):
        parts.append(rows[taken[i] : taken[i] + share])
        taken[i] += share
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def _apportion(wanted: int, sizes: list[int], limits: list[int]) -> list[int]:
    """Largest-remainder apportionment with an upper limit for each stratum; earlier strata win ties."""
    total = sum(sizes)
    exact = [wanted * size / total for size in sizes]
    shares = [min(int(e), limit) for e, limit in zip(exact, limits, strict=True)]
    while sum(shares) < min(wanted, sum(limits)):
        open_strata = [i for i, (share, limit) in enumerate(zip(shares, limits, strict=True)) if share < limit]
        shares[max(open_strata, key=lambda i: (exact[i] - shares[i], -i))] += 1
    return shares
