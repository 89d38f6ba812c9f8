"""The frozen classifier: a network whose decisions another network learns."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from models.teacher import FrozenTeacher
from models.teacher_view import TeacherView


class FrozenClassifier(nn.Module):
    """Answers with the logits of a frozen network.

    The network stays in eval mode and gets no gradient, whatever is called on the module around it.

    Args:
        network: any module from images to logits, such as a timm network with its head.
        view: turns the images that :meth:`logits` gets into those that the network takes; None: they are the same.
    """

    def __init__(self, network: nn.Module, view: TeacherView | None = None) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.view = view

    @classmethod
    def of(cls, teacher: FrozenTeacher) -> Self:
        """The head of a teacher that was loaded with one."""
        return cls(teacher.network, teacher.view)

    def train(self, mode: bool = True) -> Self:
        """Does nothing: dropout and stochastic depth stay off."""
        return self

    @torch.no_grad()
    def logits(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of images; the mean of both heads of a network with a distillation token."""
        logits: Tensor = self.network(self.view(x_BCHW) if self.view else x_BCHW)
        return logits
