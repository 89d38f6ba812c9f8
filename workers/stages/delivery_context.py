"""The context of a job that reads a dataset and may end with networks that leave the service."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

from models.architecture import Architecture
from search.constraints import Constraint
from search.latency import LatencyTable
from search.metrics import costs_of
from service.jobs.resolve import constraints_of, latency_table
from service.jobs.spec import ConstraintSpec, DatasetRef, ObjectiveSpec
from workers.channel import Channel
from workers.data.dataset import Dataset, DatasetRequest, open_dataset
from workers.protocol import DATASET_INPUT, SEARCH_INPUT, Start
from workers.rundirs import PIXELS
from workers.stages.context import Context, Json
from workers.stages.latency_limit import LatencyLimit
from workers.training.files import describe_file


class DatasetContext(Context):
    """A job on a dataset, in the form that its networks take.

    Args:
        start: the supervisor's order.
        channel: for reports.
        dataset: the part of the spec that names it.
        size: side of the square images in pixels.
        channels: of the images, 1 or 3.
        precision: see ``workers.training.compute``.

    Attributes:
        labelled: whether the job may read labels, and there are some.
    """

    def __init__(
        self, start: Start, channel: Channel, *, dataset: DatasetRef, size: int, channels: int, precision: str
    ) -> None:
        super().__init__(start, channel, precision=precision)
        self.labelled: bool = dataset.labels == "auto" and start.dataset["labelled"]
        blobs = {ref.name: Path(ref.path) for ref in start.inputs}
        self._request = DatasetRequest(
            digest=start.dataset["digest"],
            blob=blobs.get(DATASET_INPUT),
            size=size,
            channels=channels,
            val_fraction=dataset.val_fraction,
            holdout_fraction=dataset.holdout_fraction,
            use_labels=self.labelled,
            threads=start.threads,
        )

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
        return open_dataset(self._request, Path(self.start.cache_dir) / PIXELS, poll=self.poll)


class DeliveryContext(DatasetContext, ABC):
    """A job whose networks leave the service.

    Args:
        start, channel, dataset, size, channels, precision: see :class:`DatasetContext`.
        constraints, objectives: of the spec.
        classes: see below.

    Attributes:
        constraints: limits on the deployed network that formulas and the table decide; one on latency that is
            measured on the worker is not among them (``service.jobs.resolve.measured_limit``).
        table: of the device whose latency counts; None when none does.
        limits: all of the spec's.
        latency: limit that is measured on this machine; None when there is none.
        classes: names of what deployed networks tell apart; empty when they have no head.
    """

    def __init__(
        self,
        start: Start,
        channel: Channel,
        *,
        dataset: DatasetRef,
        size: int,
        channels: int,
        precision: str,
        constraints: list[ConstraintSpec],
        objectives: list[ObjectiveSpec],
        classes: tuple[str, ...],
    ) -> None:
        super().__init__(start, channel, dataset=dataset, size=size, channels=channels, precision=precision)
        self.constraints: tuple[Constraint, ...] = constraints_of(constraints)
        self.table: LatencyTable | None = latency_table(constraints, objectives)
        self.limits = tuple(constraints)
        self.latency: LatencyLimit | None = None
        self.classes = classes

    @property
    def reads_labels(self) -> bool:
        """Whether networks are trained to classify, or measured by classes."""
        return bool(self.classes)

    @property
    @abstractmethod
    def student(self) -> Architecture:
        """The largest network that is trained."""

    def take_over(self) -> Json:
        """Outputs of a stage that an earlier job has run, whose files are then kept as if this one had written them."""
        for blob in self.start.inputs:
            if blob.name not in (DATASET_INPUT, SEARCH_INPUT) and self.file(blob.name) is None:
                shutil.copyfile(blob.path, self.path(blob.name))
                self.keep(describe_file(self.path(blob.name)))
        return self.start.adopted[self.stage]

    def costs(self, arch: Architecture) -> dict[str, float]:
        """Costs of an architecture as it would be deployed, by metric name."""
        return costs_of(arch.with_classes(len(self.classes)), self.table)
