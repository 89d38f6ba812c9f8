"""What a teacher makes of a student's images: its own size, channels and normalisation, the student's patch grid.

Legend: B images, C channels, H, W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey value (ITU-R BT.601), as in the decoding of datasets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageForm:
    """How a network takes images.

    Attributes:
        size: side in pixels.
        channels: 1 (grey) or 3 (RGB).
        mean, std: of the normalisation, one value per channel, of pixels 0..1.
    """

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


class TeacherView(nn.Module):
    """Turns images as the student takes them into images as the teacher takes them.

    Undoes the student's normalisation, converts grey to RGB (repeated) or back, resizes and applies the teacher's
    normalisation. Resizing is bicubic with antialiasing, as timm preprocesses images, and stays within 0..1. Where
    sizes agree nothing is resampled, and where the forms are equal images pass as they are, bit for bit.

    Args:
        student: form of the images that come in.
        teacher: form of those that go out; the size is the student's grid times the teacher's patch.
    """

    def __init__(self, student: ImageForm, teacher: ImageForm) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        for name, values in (
            ("_mean_in", student.mean),
            ("_std_in", student.std),
            ("_mean_out", teacher.mean),
            ("_std_out", teacher.std),
        ):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.register_buffer("_luma", torch.tensor(_LUMA).view(-1, 1, 1), persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Images (B, C, H, W) of the student's form in the teacher's form."""
        if self.student == self.teacher:
            return x_BCHW
        x_BCHW = x_BCHW * self._mean_and_std("in")[1] + self._mean_and_std("in")[0]
        if self.student.channels < self.teacher.channels:
            x_BCHW = x_BCHW.expand(-1, self.teacher.channels, -1, -1)
        elif self.student.channels > self.teacher.channels:
            x_BCHW = (x_BCHW * self.get_buffer("_luma")).sum(dim=1, keepdim=True)
        if self.student.size != self.teacher.size:
            size = (self.teacher.size, self.teacher.size)
            x_BCHW = F.interpolate(x_BCHW, size=size, mode="bicubic", antialias=True).clamp(0, 1)
        mean, std = self._mean_and_std("out")
        return (x_BCHW - mean) / std

    def _mean_and_std(self, side: str) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"_mean_{side}"), self.get_buffer(f"_std_{side}")
