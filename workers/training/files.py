"""Weights on disk: safetensors, written completely or not at all, equal tensors giving equal bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

# One key only: the format writes several in random order, and equal weights would get different digests.
_METADATA_KEY = "vitailor"


class TensorFileError(ValueError):
    """The file is not one that this program wrote completely."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is on disk for good."""

    path: Path
    sha256: str
    size_bytes: int


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> WrittenFile:
    """Write tensors with a JSON header. A reader of ``path`` sees the old file or the new one, never a part.

    Args:
        path: replaced if it exists.
        tensors: by name; strides are not kept.
        header: small JSON; must hold nothing that differs between equal runs.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    metadata = {_METADATA_KEY: json.dumps(header, sort_keys=True, separators=(",", ":"))}
    return write_bytes(path, save(contiguous, metadata))


def write_bytes(path: Path, data: bytes) -> WrittenFile:
    """Write a file durably and atomically."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return WrittenFile(path, hashlib.sha256(data).hexdigest(), len(data))


def describe_file(path: Path) -> WrittenFile:
    """Digest and size of a file that is there already."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return WrittenFile(path, digest, path.stat().st_size)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file that :func:`write_tensors` wrote.

    Raises:
        TensorFileError: when it is damaged or of another kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_METADATA_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except SafetensorError as error:
        raise TensorFileError(f"{path.name} is damaged: {error}") from error
    if header is None:
        raise TensorFileError(f"{path.name} was not written by this program: it has no header")
    return tensors, json.loads(header)


@torch.no_grad()
def load_parameters(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes.

    Raises:
        TensorFileError: names or shapes differ.
    """
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if found != expected:
        differing = sorted(n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n))
        raise TensorFileError(f"tensors missing, unexpected or misshapen: {', '.join(differing)}")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
