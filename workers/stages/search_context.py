"""The context of a search job: its spec with everything derived from it, and its dataset."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from models.architecture import Architecture
from search.constraints import Constraint
from search.cost import cost
from search.space import Space
from service.jobs.resolve import constraints_of, space_of
from service.jobs.spec import SearchSpec
from workers.channel import Channel
from workers.data.dataset import Dataset, DatasetRequest, open_dataset
from workers.protocol import DATASET_INPUT, Start
from workers.stages.context import Context, Json
from workers.training.files import describe_file


class SearchContext(Context):
    """What the stages of a search share.

    Attributes:
        spec: without open fields (see ``service.jobs.resolve``).
        space: that the spec names.
        constraints: limits on the deployed network.
        classes: names of what deployed networks tell apart; empty when nothing is retrained.
    """

    def __init__(self, start: Start, channel: Channel) -> None:
        self.spec = SearchSpec.model_validate(start.spec)
        super().__init__(start, channel, precision=self.spec.resources.precision)
        self.space: Space = space_of(self.spec)
        self.constraints: tuple[Constraint, ...] = constraints_of(self.spec.constraints)
        self.classes: tuple[str, ...] = () if self.spec.retrain.mode == "none" else tuple(start.dataset["classes"])

    @property
    def seed(self) -> int:
        """Seed of all streams."""
        return self.start.seed

    @cached_property
    def dataset(self) -> Dataset:
        """The job's dataset, decoded when no job of this host has done so before.

        Raises:
            DatasetInvalid: see ``workers.data.dataset``.
        """
        blobs = {ref.name: Path(ref.path) for ref in self.start.inputs}
        request = DatasetRequest(
            digest=self.start.dataset["digest"],
            blob=blobs.get(DATASET_INPUT),
            size=self.space.img_size,
            channels=self.space.in_chans,
            val_fraction=self.spec.dataset.val_fraction,
            holdout_fraction=self.spec.dataset.holdout_fraction,
            use_labels=self.spec.dataset.labels == "auto" and self.start.dataset["labelled"],
            threads=self.start.threads,
        )
        return open_dataset(request, Path(self.start.cache_dir) / "pixels", poll=self.poll)

    def take_over(self) -> Json:
        """Outputs of a stage that an earlier job has run, whose files are then kept as if this one had written them."""
        for blob in self.start.inputs:
            if blob.name != DATASET_INPUT and self.file(blob.name) is None:
                shutil.copyfile(blob.path, self.path(blob.name))
                self.keep(describe_file(self.path(blob.name)))
        return self.start.adopted[self.stage]

    def costs(self, arch: Architecture) -> dict[str, float]:
        """Costs of an architecture as it would be deployed, by metric name."""
        deployed = cost(arch.with_classes(len(self.classes)))
        return {"params_m": deployed.params_m, "gmacs": deployed.gmacs}
