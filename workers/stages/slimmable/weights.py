"""Networks of single widths: slices of shared weights, or files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from models.extract import build_timm, extract_state
from models.slimmable import Slimmable
from models.supernet import Supernet
from workers.stages.finalists import Trained
from workers.training.files import load_parameters, read_tensors
from workers.training.streams import torch_stream

_HEADS = ("head.", "head_dist.")


class WidthWeights(Protocol):
    """Where the weights of a width come from."""

    def network(self, head_dim: int) -> VisionTransformer:
        """The network of its own of a width, on the CPU, in eval mode."""
        ...

    def trained(self, head_dim: int) -> Trained:
        """What is exported of a width, and what the export has to repeat."""
        ...


class SlicedWeights:
    """Widths cut from a slimmable network.

    Args:
        net: what it is.
        state: its weights under timm's names, on the CPU.
    """

    def __init__(self, net: Slimmable, state: Mapping[str, Tensor]) -> None:
        self.net = net
        self.state = dict(state)

    @classmethod
    def read(cls, net: Slimmable, path: Path) -> SlicedWeights:
        """Read a file of ``workers.training.files``."""
        return cls(net, read_tensors(path)[0])

    def network(self, head_dim: int) -> VisionTransformer:
        """See :class:`WidthWeights`."""
        network = build_timm(self.net.architecture(head_dim))
        network.load_state_dict(self._cut(head_dim))
        return network.eval()

    def trained(self, head_dim: int) -> Trained:
        """See :class:`WidthWeights`; the answer is that of the slice, not of the network made of it."""
        arch, cut = self.net.architecture(head_dim), self.net.cut(head_dim)
        supernet = Supernet(self.net.largest, torch_stream(0))
        load_parameters(dict(supernet.named_parameters()), self.state)

        @torch.inference_mode()
        def answer(images: Tensor) -> Tensor:
            logits: Tensor = supernet(images, arch, cut)
            return logits

        return Trained(self._cut(head_dim), answer)

    def headless(self) -> SlicedWeights:
        """The same network without its head: images become the features that the head reads."""
        net = replace(self.net, largest=self.net.largest.with_classes(0))
        return SlicedWeights(net, {name: t for name, t in self.state.items() if not name.startswith(_HEADS)})

    def _cut(self, head_dim: int) -> dict[str, Tensor]:
        net = self.net
        return extract_state(self.state, net.largest, net.architecture(head_dim), net.cut(head_dim))


class OwnWeights:
    """Widths that were trained alone.

    Args:
        net: their sizes.
        folder: of their files.
    """

    def __init__(self, net: Slimmable, folder: Path) -> None:
        self._net = net
        self._folder = folder

    def network(self, head_dim: int) -> VisionTransformer:
        """See :class:`WidthWeights`."""
        network = build_timm(self._net.architecture(head_dim))
        tensors, _ = read_tensors(self._folder / width_file(head_dim))
        load_parameters(dict(network.named_parameters()), tensors)
        return network.eval()

    def trained(self, head_dim: int) -> Trained:
        """See :class:`WidthWeights`."""
        return Trained.of(self.network(head_dim))


def width_file(head_dim: int) -> str:
    """Name of the file with the weights of a width that was trained alone."""
    return f"width-{head_dim}.safetensors"
