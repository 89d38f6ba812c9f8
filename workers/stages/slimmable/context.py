"""The context of a job that trains a slimmable network, or its widths one by one."""

from __future__ import annotations

from models.architecture import Architecture
from models.slimmable import Slimmable
from service.jobs.resolve import slimmable_of
from service.jobs.spec import SlimmableSpec
from workers.channel import Channel
from workers.protocol import Start
from workers.stages.delivery_context import DeliveryContext


class SlimmableContext(DeliveryContext):
    """What the stages of a search over widths share.

    Attributes:
        spec: without open fields (see ``service.jobs.resolve``).
        net: that the spec names, with the head that its widths are deployed with.
        classes: empty when nothing learns from labels.
    """

    def __init__(self, start: Start, channel: Channel) -> None:
        self.spec = SlimmableSpec.model_validate(start.spec)
        classes = () if self.spec.training.cross_entropy is False else tuple(start.dataset["classes"])
        self.net: Slimmable = slimmable_of(self.spec, len(classes))
        super().__init__(
            start,
            channel,
            dataset=self.spec.dataset,
            size=self.net.largest.img_size,
            channels=self.net.largest.in_chans,
            precision=self.spec.resources.precision,
            constraints=self.spec.constraints,
            objectives=self.spec.objectives,
            classes=classes,
        )

    @property
    def student(self) -> Architecture:
        """The whole network."""
        return self.net.largest

    @property
    def is_shared(self) -> bool:
        """Whether widths share weights, or were trained alone."""
        return self.spec.method != "separate"

    @property
    def reads_labels(self) -> bool:
        """Always: widths are measured by classes, also where none are learnt."""
        return True
