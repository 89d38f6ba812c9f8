"""Random streams named by what they are for, so that a resumed run needs no generator state.

A stream is a fresh generator whose seed is a hash of the run's seed and a path such as ``("supernet", "mask", step)``.
What it yields depends on nothing else: not on what was drawn before, not on the order of calls, not on where a run was
interrupted.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

PathPart = str | int


def stream_key(seed: int, *path: PathPart) -> int:
    """128-bit seed of the stream ``path`` of a run.

    The encoding is JSON, in which ``1`` and ``"1"`` differ and no two paths run into each other.

    Raises:
        TypeError: for parts that are neither text nor integers.
    """
    for part in path:
        if not isinstance(part, str | int) or isinstance(part, bool):
            raise TypeError(f"a stream is named by texts and integers, found {part!r} in {path!r}")
    canonical = json.dumps([seed, *path], separators=(",", ":")).encode()
    return int.from_bytes(hashlib.blake2b(canonical, digest_size=16, person=b"vitailor-stream").digest(), "big")


def numpy_stream(seed: int, *path: PathPart) -> np.random.Generator:
    """A fresh PCG64 generator for ``path``."""
    return np.random.Generator(np.random.PCG64(stream_key(seed, *path)))


def torch_stream(seed: int, *path: PathPart) -> torch.Generator:
    """A fresh generator for ``path``, on the CPU: draws must not depend on the device that trains.

    PyTorch's CPU generator keeps 32 bits of a seed, so among 100,000 streams one pair is likely to coincide. Streams
    drive masks and augmentations of single steps, where a repetition is harmless.
    """
    return torch.Generator().manual_seed(stream_key(seed, *path) & 0xFFFF_FFFF)
