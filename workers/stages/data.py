"""The first stage: the dataset is there, divided, and decoded for everything that follows."""

from __future__ import annotations

from dataclasses import asdict

from service.errors import DatasetInvalid
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext


class DataStage:
    """Opens the dataset and states how it is divided."""

    name = "data"

    def run(self, ctx: DeliveryContext) -> Json:
        """Returns the number of images in each part and the preprocessing.

        Raises:
            DatasetInvalid: parts are empty, or labels that the job needs are missing.
        """
        dataset = ctx.dataset
        parts = {"train": dataset.train, "val": dataset.val, "holdout": dataset.holdout}
        if dataset.unused:
            detail = f"{dataset.unused} images of official splits have no label and are left out"
            ctx.warn("unlabelled_images_unused", detail)
        if ctx.reads_labels:
            if dataset.labels is None:
                raise DatasetInvalid("this job needs labels, and the dataset has none")
            for name, images in parts.items():
                if not len(dataset.labels.of(images)):
                    raise DatasetInvalid(f"the {name} part has no labelled image, which this job needs")
        return {
            "images": {name: len(images) for name, images in parts.items()},
            "preprocessing": asdict(dataset.train.preprocessing),
        }
