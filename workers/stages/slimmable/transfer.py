"""The job that judges the features of a slimmable network on another dataset, at every width that is offered."""

from __future__ import annotations

import torch

from service.errors import DatasetInvalid
from service.jobs.spec import TransferSpec
from workers.channel import Channel
from workers.data.dataset import LabelledSet
from workers.protocol import Result, Start
from workers.stages.context import Json
from workers.stages.delivery_context import DatasetContext
from workers.stages.slimmable.known import KnownNetwork, on_images_of
from workers.stages.slimmable.readout import features, linear_probe, nearest_neighbours
from workers.stages.slimmable.weights import SlicedWeights

STAGE = "transfer"

MAX_IMAGES = 50_000
"""Training images that are looked at; they are spread evenly over the part."""


class _Transfer:
    def __init__(self, ctx: DatasetContext, spec: TransferSpec, known: KnownNetwork) -> None:
        labels = ctx.dataset.labels
        if labels is None:
            raise DatasetInvalid("a transfer is judged by classes, and the dataset has no labels")
        self.train, self.val = labels.of(ctx.dataset.train).first(MAX_IMAGES), labels.of(ctx.dataset.val)
        if not len(self.train) or not len(self.val):
            raise DatasetInvalid("the train or the val part has no labelled image, so nothing can be judged")
        self._ctx, self._spec, self._known = ctx, spec, known
        self._weights: SlicedWeights = known.weights().headless()

    def judge(self, head_dim: int) -> Json:
        """Accuracies of both readings of one width."""
        train, val = self._features(head_dim, self.train), self._features(head_dim, self.val)
        labels, truth = torch.from_numpy(self.train.labels), torch.from_numpy(self.val.labels)
        classes = self.train.classes
        by_line = linear_probe(train, labels, val, classes)
        by_neighbours = nearest_neighbours(train, labels, val, classes, self._spec.k)
        return {
            "linear_probe": float((by_line == truth).double().mean()),
            "knn": float((by_neighbours == truth).double().mean()),
        }

    def _features(self, head_dim: int, data: LabelledSet) -> torch.Tensor:
        given, own = data.images.preprocessing, self._known.preprocessing
        network = on_images_of(self._weights.network(head_dim), given, own)
        return features(network, data, self._ctx.compute, self._spec.batch_size, self._ctx.poll)


def transfer_job(start: Start, channel: Channel) -> Result:
    """Fit a linear probe and neighbours on the train part, and measure both on the val part.

    The holdout is not read. An interrupted job goes on with the next width.

    Raises:
        DatasetInvalid: no labels.
        SupernetUnavailable: the weights are damaged on this host.
        StopRequested: when asked to stop, after a checkpoint.
    """
    spec = TransferSpec.model_validate(start.spec)
    known = KnownNetwork.of(start)
    largest = known.net.largest
    ctx = DatasetContext(
        start, channel, dataset=spec.dataset, size=largest.img_size, channels=largest.in_chans, precision="auto"
    )
    ctx.enter(STAGE)
    transfer = _Transfer(ctx, spec, known)
    wanted = [width for width in known.info["widths"] if width["offered"]]
    judged: dict[str, Json] = dict(ctx.state.get("judged", {}))
    for width in wanted:
        key = str(width["head_dim"])
        if key not in judged:
            judged[key] = transfer.judge(width["head_dim"])
            ctx.progress(len(judged) / len(wanted))
            ctx.safe_point(lambda: ctx.checkpoint({"judged": judged}))
    return Result(
        result={
            "supernet": known.reference,
            "dataset": start.dataset["name"],
            "classes": transfer.train.classes,
            "images": {"train": len(transfer.train), "val": len(transfer.val)},
            "k": spec.k,
            "widths": [{**width, **judged[str(width["head_dim"])]} for width in wanted],
        },
        artifacts=[],
    )
