"""Supervised training of one network: from labels, and where there is a teacher also from its decisions.

Legend: B images, C channels, H, W pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from workers.data.dataset import LabelledSet
from workers.training.augment import Augmentation
from workers.training.compute import Compute
from workers.training.engine import Losses
from workers.training.mixing import Mixing
from workers.training.parts import WHOLE, in_parts_that_fit
from workers.training.schedule import BatchOrder
from workers.training.stochastic_depth import StochasticDepth
from workers.training.streams import numpy_stream, torch_stream


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Normalised images (B, C, H, W), and classes int64 (B,) or the share of each class (B, K)."""

    images: Tensor
    targets: Tensor

    def of(self, part: slice) -> LabelledBatch:
        """Some of its images, with their classes."""
        return LabelledBatch(self.images[part], self.targets[part])


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """Batches of augmented and mixed images with their classes."""

    data: LabelledSet
    order: BatchOrder
    augmentation: Augmentation
    mixing: Mixing
    compute: Compute

    @property
    def batch_size(self) -> int:
        """Images of each batch."""
        return self.order.batch_size

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


class ClassTeacher(Protocol):
    """A frozen network whose decisions are learnt, such as ``models.classifier.FrozenClassifier``."""

    def logits(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of images, without gradient, on their device."""
        ...


class Supervised:
    """Cross-entropy of a timm network with label smoothing, see :func:`supervised_loss`.

    Args:
        network: any module from images to logits.
        label_smoothing: share of the target spread over all classes.
        stochastic_depth: of this network; None trains all of it in each step.
        teacher: on the device of the batches; its decisions are half of what is learnt. None: labels alone.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        label_smoothing: float,
        stochastic_depth: StochasticDepth | None = None,
        teacher: ClassTeacher | None = None,
    ) -> None:
        if isinstance(network, VisionTransformerDistilled):
            network.set_distilled_training(True)  # both heads' logits while it trains; still their mean in eval mode
        self.network = network.train()
        self._label_smoothing = label_smoothing
        self._stochastic_depth = stochastic_depth
        self._teacher = teacher

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters under timm's names."""
        return self.network.named_parameters()

    def losses(self, batch: LabelledBatch, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Loss of one batch, or of a part of it."""
        if self._stochastic_depth is not None:
            self._stochastic_depth.draw(len(batch.images), step, batch.images.device, part)
        batch = batch.of(part)
        taught = decisions(self._teacher, batch.images)
        output = self.network(batch.images)
        heads = output if isinstance(output, tuple) else (output,)
        yield Losses(supervised_loss(heads, batch.targets, taught, self._label_smoothing))

    def largest_losses(self, batch: LabelledBatch, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Nothing: every step trains the same network."""
        return iter(())


def decisions(teacher: ClassTeacher | None, images: Tensor) -> Tensor | None:
    """Which class the teacher puts each image into, int64 (B,); None without a teacher."""
    return None if teacher is None else teacher.logits(images).argmax(dim=-1)


def supervised_loss(heads: Sequence[Tensor], targets: Tensor, taught: Tensor | None, label_smoothing: float) -> Tensor:
    """Cross-entropy to labels, and with a teacher to its decisions, half each (DeiT, Touvron et al. 2021, equation 3).

    The first head learns labels, the last one the teacher's decisions, which are not smoothed. Without a teacher a
    second head learns labels too, so that it may take part in the network's answer.

    Args:
        heads: logits (B, K) of each head: of the class token, and of the distillation token where there is one.
        targets: classes int64 (B,) or the share of each class (B, K).
        taught: the teacher's decisions, int64 (B,); None: there is none.
        label_smoothing: share of the target spread over all classes.

    Returns:
        A scalar, the mean over the images.
    """
    labels = F.cross_entropy(heads[0], targets, label_smoothing=label_smoothing)
    if taught is not None:
        return (labels + F.cross_entropy(heads[-1], taught)) / 2
    if len(heads) == 1:
        return labels
    return (labels + F.cross_entropy(heads[-1], targets, label_smoothing=label_smoothing)) / 2


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
            logits = in_parts_that_fit(lambda part: network(part.to(compute.device)).cpu(), images)
        predicted = logits.argmax(dim=-1)
        correct += int((predicted == labels).sum())
        poll()
    network.train(was_training)
    return correct
