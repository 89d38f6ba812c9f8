"""The built-in dataset ``digits``, from the copy that scikit-learn ships."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from service.datasets.builtin import BUILTINS, images_digest
from service.errors import DatasetInvalid

_MAX_INK = 16  # scikit-learn's pixels count the inked pixels of 4x4 cells


@dataclass(frozen=True, slots=True)
class DigitsArrays:
    """Pixels uint8 (N, 8, 8) and labels int64 (N,)."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read_digits() -> DigitsArrays:
    """The 1,797 images and their labels, verified.

    Raises:
        DatasetInvalid: when the installed scikit-learn ships other data than the registered digest.
    """
    bunch = load_digits()
    pixels = np.rint(np.asarray(bunch.images, dtype=np.float64) * 255 / _MAX_INK).astype(np.uint8)
    labels = np.asarray(bunch.target, dtype=np.int64)
    found = images_digest(pixels.shape, pixels.tobytes(), labels.astype("<i4").tobytes())
    expected = BUILTINS["digits"].digest
    if found != expected:
        raise DatasetInvalid(f"the installed scikit-learn ships other digits: digest {found}, expected {expected}")
    return DigitsArrays(pixels=pixels, labels=labels)
