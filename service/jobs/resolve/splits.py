"""How many images each part of a job's data has; the split itself is ``workers.data.split``, which knows each label."""

from __future__ import annotations

from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.spec import DatasetRef


def train_images_of(asked: DatasetRef, dataset: DatasetInfo) -> int:
    """Images that are left to train on.

    Raises:
        ValidationFailed: fewer than two.
    """
    count = dataset.images - holdout_images_of(asked, dataset) - val_images_of(asked, dataset)
    if count < 2:
        raise ValidationFailed(
            f"Dataset {dataset.name!r} has {dataset.images} images; after the split {count} are left to train on.",
            errors=[ErrorItem("/dataset", "too_few_images", f"{count} training images are left", "at least 2")],
        )
    return count


def val_images_of(asked: DatasetRef, dataset: DatasetInfo) -> int:
    """Images that networks are ranked on."""
    return dataset.val_images or max(1, round(asked.val_fraction * _divisible(dataset)))


def holdout_images_of(asked: DatasetRef, dataset: DatasetInfo) -> int:
    """Images that nothing looks at before the report."""
    return dataset.test_images or max(1, round(asked.holdout_fraction * _divisible(dataset)))


def _divisible(dataset: DatasetInfo) -> int:
    return dataset.images - dataset.test_images - dataset.val_images
