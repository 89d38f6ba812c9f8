"""The context of a search of a space of architectures: its spec with everything derived from it."""

from __future__ import annotations

from models.architecture import Architecture
from search.space import Space
from service.jobs.resolve import space_of
from service.jobs.spec import SearchSpec
from workers.channel import Channel
from workers.protocol import Start
from workers.stages.delivery_context import DeliveryContext


class SearchContext(DeliveryContext):
    """What the stages of a search share.

    Attributes:
        spec: without open fields (see ``service.jobs.resolve``).
        space: that the spec names.
        classes: empty when nothing is retrained.
    """

    def __init__(self, start: Start, channel: Channel) -> None:
        self.spec = SearchSpec.model_validate(start.spec)
        self.space: Space = space_of(self.spec)
        super().__init__(
            start,
            channel,
            dataset=self.spec.dataset,
            size=self.space.img_size,
            channels=self.space.in_chans,
            precision=self.spec.resources.precision,
            constraints=self.spec.constraints,
            objectives=self.spec.objectives,
            classes=() if self.spec.retrain.mode == "none" else tuple(start.dataset["classes"]),
        )

    @property
    def student(self) -> Architecture:
        """The largest network of the space."""
        return self.space.largest()
