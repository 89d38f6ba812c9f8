"""Supervised training of one extracted network: the only part of a label-free search that reads labels.

Legend: B images, C channels, H, W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.data.dataset import LabelledSet
from workers.training.augment import random_shift
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import Losses
from workers.training.schedule import BatchOrder
from workers.training.streams import torch_stream


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Normalised images (B, C, H, W) and classes int64 (B,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Random changes of each training image.

    Attributes:
        max_shift: largest translation along each axis, as a share of the side; the border pixels are repeated.
        crop: box that becomes the image, and mirroring.
    """

    max_shift: float
    crop: RandomCrop

    def apply(self, x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """Changed images; draws come from ``generator``, on the CPU."""
        if self.max_shift:
            x_BCHW = random_shift(x_BCHW, self.max_shift, generator)
        return x_BCHW if self.crop.changes_nothing else self.crop.apply(x_BCHW, generator)


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """Batches of augmented images with their classes."""

    data: LabelledSet
    order: BatchOrder
    augmentation: Augmentation
    compute: Compute

    def at(self, step: int) -> LabelledBatch:
        """The batch of a step."""
        positions = self.order.positions(step)
        images = self.data.images.batch(positions).to(self.compute.device)
        labels = torch.from_numpy(self.data.labels[positions]).to(self.compute.device)
        generator = torch_stream(self.order.seed, *self.order.stage, "augment", step)
        return LabelledBatch(self.augmentation.apply(images, generator), labels)


class Supervised:
    """Cross-entropy of a timm network with label smoothing.

    Args:
        network: any module from images to logits.
        label_smoothing: share of the target spread over all classes.
    """

    def __init__(self, network: nn.Module, *, label_smoothing: float) -> None:
        self.network = network.train()
        self._label_smoothing = label_smoothing

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters under timm's names."""
        return self.network.named_parameters()

    def losses(self, batch: LabelledBatch, step: int) -> Iterator[Losses]:
        """Loss of one batch."""
        yield Losses(F.cross_entropy(self.network(batch.images), batch.labels, label_smoothing=self._label_smoothing))


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
