"""Device and precision of a training, decided once and passed around."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Compute:
    """Where tensors live and in which precision forwards run.

    Attributes:
        device: of parameters and batches.
        autocast: type of mixed precision, None for float32 throughout.
    """

    device: torch.device
    autocast: torch.dtype | None = None

    def forward(self) -> AbstractContextManager[object]:
        """Context for forwards and losses."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)


def choose_compute(device: str, precision: str) -> Compute:
    """What ``device`` (``auto``, ``cpu``, ``cuda``, ``cuda:1``) and ``precision`` (``auto``, ``fp32``) mean here.

    Mixed precision is used on GPUs with bfloat16 only: on processors without matrix units for it, it is many times
    slower than float32.
    """
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    mixed = precision == "auto" and chosen.type == "cuda" and torch.cuda.is_bf16_supported()
    return Compute(chosen, torch.bfloat16 if mixed else None)
