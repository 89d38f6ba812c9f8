"""How much memory tensors hold while a network runs, counted at every operation."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _LiveTensors(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        self._storages = {key: seen for key, seen in self._storages.items() if not seen[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._storages.values()))
        return found


def peak_of_forward(network: nn.Module, images: Tensor) -> int:
    """Most bytes that weights, images and tensors of the forward pass hold at once."""
    live = _LiveTensors()
    for tensor in (*network.parameters(), images):
        live.see(tensor)
    with torch.no_grad(), live:
        network(images)
    return live.peak_bytes
