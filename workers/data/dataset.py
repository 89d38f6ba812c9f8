"""A dataset ready for training: mapped pixels, a fixed split, and the preprocessing that an export must repeat.

Images and labels are separate objects on purpose: pretraining and search are handed an :class:`ImageSet`, which has no
labels to read.

Legend: B batch, C channels, S side of the square images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from models.export_record import Interpolation, Preprocessing
from service.datasets.builtin import BUILTINS
from service.errors import DatasetInvalid
from workers.data.blob import BlobError, SplitName, read_images, read_index
from workers.data.cache import CacheKey, cached_pixels
from workers.data.digits import read_digits
from workers.data.images import DecodedImage, decode, to_square
from workers.data.split import split_dataset

# A constant channel has no spread to divide by; half a grey level leaves it at zero.
_MIN_STD = 0.5 / 255
_STATISTICS_BATCH = 4096
_DIGITS = 6  # of mean and std: far below a grey level, and readable in an exported file


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Some rows of the mapped pixels, without labels.

    Attributes:
        pixels: uint8 (N, C, S, S) of the whole dataset.
        rows: int64, the rows of this set, ascending.
        preprocessing: how the pixels were made, and their normalisation.
    """

    pixels: NDArray[np.uint8]
    rows: NDArray[np.int64]
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, positions: NDArray[np.int64]) -> Tensor:
        """Normalised images (B, C, S, S), float32, at these positions of the set."""
        picked = torch.from_numpy(self.pixels[self.rows[positions]])
        mean = torch.tensor(self.preprocessing.mean).view(-1, 1, 1)
        std = torch.tensor(self.preprocessing.std).view(-1, 1, 1)
        return (picked.float() / 255 - mean) / std

    def batches(self, size: int) -> Iterator[Tensor]:
        """All images in order, the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.batch(np.arange(start, min(start + size, len(self))))

    def first(self, count: int) -> ImageSet:
        """At most ``count`` images, spread evenly over the set."""
        return ImageSet(self.pixels, self.rows[_spread(len(self), count)], self.preprocessing)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Images with a class each: ``labels`` is int64 (N,), values 0 to ``classes - 1``."""

    images: ImageSet
    labels: NDArray[np.int64]
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> LabelledSet:
        """At most ``count`` images, spread evenly over the set."""
        return LabelledSet(self.images.first(count), self.labels[_spread(len(self), count)], self.classes)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a whole dataset; handed only to what may read them.

    Attributes:
        values: int64 (N,), ``NO_LABEL`` where unknown.
        names: class names in order.
    """

    values: NDArray[np.int64]
    names: tuple[str, ...]

    def of(self, images: ImageSet) -> LabelledSet:
        """The labelled images of a set."""
        known = self.values[images.rows] >= 0
        labelled = ImageSet(images.pixels, images.rows[known], images.preprocessing)
        return LabelledSet(labelled, self.values[labelled.rows], len(self.names))


@dataclass(frozen=True, slots=True)
class Dataset:
    """The parts of a dataset. The holdout may be read once, when a job's winner is measured."""

    train: ImageSet
    val: ImageSet
    holdout: ImageSet
    labels: Labels | None
    unused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRequest:
    """Which dataset, in which form.

    Attributes:
        digest: of the dataset.
        blob: its canonical blob; None for the built-in digits.
        size: side of the square images in pixels.
        channels: 1 or 3; images of the other kind are converted.
        val_fraction, holdout_fraction: see ``workers.data.split``.
        use_labels: False treats the dataset as unlabelled.
        threads: decoders that run at once while the cache is built.
    """

    digest: str
    blob: Path | None
    size: int
    channels: int
    val_fraction: float
    holdout_fraction: float
    use_labels: bool = True
    threads: int = 1


@dataclass(frozen=True, slots=True)
class _Content:
    labels: NDArray[np.int64]
    splits: Sequence[SplitName | None]
    names: tuple[str, ...]
    images: Callable[[], Iterator[list[DecodedImage]]]


def open_dataset(request: DatasetRequest, cache_dir: Path, *, poll: Callable[[], None] = lambda: None) -> Dataset:
    """Open a dataset, decoding it into the host's cache when nobody has done so before.

    Args:
        request: which dataset, in which form.
        cache_dir: the host's cache of decoded datasets.
        poll: called while decoding; may raise to stop.

    Raises:
        DatasetInvalid: the blob is not what its digest says, or too small to be divided.
    """
    content = _digits() if request.blob is None else _blob(request, request.blob)
    split = split_dataset(
        request.digest,
        content.labels,
        content.splits,
        val_fraction=request.val_fraction,
        holdout_fraction=request.holdout_fraction,
    )
    key = CacheKey(request.digest, request.size, request.channels)
    pixels = cached_pixels(cache_dir, key, len(content.labels), lambda: _squares(content, request), poll=poll)
    preprocessing = _measure(pixels, split.train, request.size)
    labels = Labels(content.labels, content.names) if request.use_labels and content.names else None
    train, val, holdout = (ImageSet(pixels, rows, preprocessing) for rows in (split.train, split.val, split.holdout))
    return Dataset(train=train, val=val, holdout=holdout, labels=labels, unused=len(split.unused))


def _digits() -> _Content:
    arrays = read_digits()

    def images() -> Iterator[list[DecodedImage]]:
        yield [DecodedImage(Image.fromarray(pixels), "array", "L") for pixels in arrays.pixels]

    return _Content(arrays.labels, [None] * len(arrays.labels), BUILTINS["digits"].classes, images)


def _blob(request: DatasetRequest, path: Path) -> _Content:
    try:
        index = read_index(path)
    except BlobError as error:
        raise DatasetInvalid(str(error)) from error

    def images() -> Iterator[list[DecodedImage]]:
        # Checked only here, where the file is read anyway: a wrong cache entry would outlive the job.
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != request.digest:
            raise DatasetInvalid(f"{path.name} has digest {found}, expected {request.digest}")
        with ThreadPoolExecutor(request.threads) as pool:
            for batch in read_images(path):
                yield list(pool.map(decode, batch))

    return _Content(index.labels, index.splits, index.classes, images)


def _squares(content: _Content, request: DatasetRequest) -> Iterator[NDArray[np.uint8]]:
    for batch in content.images():
        yield np.stack([to_square(image, request.size, request.channels) for image in batch])


def _measure(pixels: NDArray[np.uint8], rows: NDArray[np.int64], size: int) -> Preprocessing:
    """Mean and standard deviation of each channel, summed as integers so that they do not depend on the order."""
    channels = pixels.shape[1]
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(rows), _STATISTICS_BATCH):
        batch = pixels[rows[start : start + _STATISTICS_BATCH]].astype(np.int64)
        total += batch.sum(axis=(0, 2, 3))
        squares += (batch**2).sum(axis=(0, 2, 3))
    values = len(rows) * size * size
    mean = total / values / 255
    std = np.sqrt(np.maximum(squares / values / 255**2 - mean**2, _MIN_STD**2))
    return Preprocessing(
        size=size,
        mean=tuple(mean.round(_DIGITS).tolist()),
        std=tuple(std.round(_DIGITS).tolist()),
        interpolation=Interpolation.BICUBIC,
    )


def _spread(available: int, count: int) -> NDArray[np.int64]:
    """Positions of at most ``count`` of the available items; order of a dataset often follows its classes."""
    return np.linspace(0, available - 1, min(count, available)).round().astype(np.int64)
