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
from workers.training.compute import Compute
from workers.training.engine import Losses
from workers.training.schedule import BatchOrder
from workers.training.streams import PathPart, torch_stream


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Normalised images (B, C, H, W) and classes int64 (B,)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """Batches of labelled images."""

    data: LabelledSet
    order: BatchOrder
    compute: Compute

    def at(self, step: int) -> LabelledBatch:
        """The batch of a step."""
        positions = self.order.positions(step)
        images = self.data.images.batch(positions).to(self.compute.device)
        labels = torch.from_numpy(self.data.labels[positions]).to(self.compute.device)
        return LabelledBatch(images, labels)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Random changes of each training image.

    Attributes:
        max_shift: largest translation along each axis, as a share of the side; the border pixels are repeated.
        horizontal_flip: mirror half of the images.
    """

    max_shift: float = 0.0
    horizontal_flip: bool = False

    def apply(self, x_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """Changed copies; draws come from ``generator``, on the CPU."""
        batch, _, height, width = x_BCHW.shape
        rows_BH = self._axis(batch, height, generator)
        columns_BW = self._axis(batch, width, generator)
        if self.horizontal_flip:
            mirrored = torch.rand(batch, 1, generator=generator) < 0.5
            columns_BW = torch.where(mirrored, columns_BW.flip(1), columns_BW)
        rows_BH, columns_BW = rows_BH.to(x_BCHW.device), columns_BW.to(x_BCHW.device)
        images = torch.arange(batch, device=x_BCHW.device)[:, None, None]
        # Indexing around a slice puts the channel axis last.
        return x_BCHW[images, :, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)

    def _axis(self, batch: int, side: int, generator: torch.Generator) -> Tensor:
        """Source index (B, side) of each pixel along one axis."""
        reach = int(self.max_shift * side)
        shift = torch.randint(-reach, reach + 1, (batch, 1), generator=generator)
        return (torch.arange(side) + shift).clamp(0, side - 1)


class Supervised:
    """Cross-entropy of a timm network with label smoothing, on augmented images.

    Args:
        network: any module from images to logits.
        augmentation: applied to each batch.
        label_smoothing: share of the target spread over all classes.
        seed: of the run.
        stage: stream names of this training start with it.
    """

    def __init__(
        self,
        network: nn.Module,
        augmentation: Augmentation,
        *,
        label_smoothing: float,
        seed: int,
        stage: tuple[PathPart, ...],
    ) -> None:
        self.network = network.train()
        self._augmentation = augmentation
        self._label_smoothing = label_smoothing
        self._seed = seed
        self._stage = stage

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters under timm's names."""
        return self.network.named_parameters()

    def losses(self, batch: LabelledBatch, step: int) -> Iterator[Losses]:
        """Loss of one batch."""
        images = self._augmentation.apply(batch.images, torch_stream(self._seed, *self._stage, "augment", step))
        yield Losses(F.cross_entropy(self.network(images), batch.labels, label_smoothing=self._label_smoothing))


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
