"""Supervised training of one extracted network: the only part of a label-free search that reads labels.

Legend: B images, C channels, H, W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.data.dataset import LabelledSet
from workers.training.augment import Augmentation
from workers.training.compute import Compute
from workers.training.engine import Losses
from workers.training.mixing import Mixing
from workers.training.schedule import BatchOrder
from workers.training.stochastic_depth import StochasticDepth
from workers.training.streams import numpy_stream, torch_stream


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Normalised images (B, C, H, W), and classes int64 (B,) or the share of each class (B, K)."""

    images: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """Batches of augmented and mixed images with their classes."""

    data: LabelledSet
    order: BatchOrder
    augmentation: Augmentation
    mixing: Mixing
    compute: Compute

    def at(self, step: int) -> LabelledBatch:
        """The batch of a step."""
        seed, stage = self.order.seed, self.order.stage
        positions = self.order.positions(step)
        source = self.data.images
        images = source.batch(positions).to(self.compute.device)
        labels = torch.from_numpy(self.data.labels[positions]).to(self.compute.device)
        how = source.preprocessing
        images = self.augmentation.apply(images, how.mean, how.std, torch_stream(seed, *stage, "augment", step))
        if self.mixing.changes_nothing:
            return LabelledBatch(images, labels)
        return LabelledBatch(
            *self.mixing.apply(images, labels, self.data.classes, numpy_stream(seed, *stage, "mix", step))
        )


class Supervised:
    """Cross-entropy of a timm network with label smoothing.

    Args:
        network: any module from images to logits.
        label_smoothing: share of the target spread over all classes.
        stochastic_depth: of this network; None trains all of it in each step.
    """

    def __init__(
        self, network: nn.Module, *, label_smoothing: float, stochastic_depth: StochasticDepth | None = None
    ) -> None:
        self.network = network.train()
        self._label_smoothing = label_smoothing
        self._stochastic_depth = stochastic_depth

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters under timm's names."""
        return self.network.named_parameters()

    def losses(self, batch: LabelledBatch, step: int) -> Iterator[Losses]:
        """Loss of one batch."""
        if self._stochastic_depth is not None:
            self._stochastic_depth.draw(len(batch.images), step, batch.images.device)
        yield Losses(F.cross_entropy(self.network(batch.images), batch.targets, label_smoothing=self._label_smoothing))


@torch.inference_mode()
def count_correct(
    network: nn.Module, data: LabelledSet, compute: Compute, batch_size: int, poll: Callable[[], None] = lambda: None
) -> int:
    """How many images the network puts into their class. ``poll`` is called after each batch; it may raise to stop."""
    was_training = network.training
    network.eval()
    correct = 0
    for start, images in enumerate(data.images.batches(batch_size)):
        labels = torch.from_numpy(data.labels[start * batch_size : start * batch_size + len(images)])
        with compute.forward():
            predicted = network(images.to(compute.device)).argmax(dim=-1).cpu()
        correct += int((predicted == labels).sum())
        poll()
    network.train(was_training)
    return correct
