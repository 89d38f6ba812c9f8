"""Reads weights that others have written. Nothing in a file is ever executed.

safetensors hold nothing but tensors. Torch's own files are pickles: they are opened with ``weights_only``, which builds
tensors and plain containers and refuses every other object, except ``argparse.Namespace``, in which MAE, DeiT and
AutoFormer keep the arguments of their training; it has attributes and no behaviour.
"""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.foreign.transforms import PATCH_EMBEDDING
from service.errors import TeacherInvalid
from service.teachers.files import SAFETENSORS, unreadable

MAX_BYTES = 32 * 1024**3
"""The largest published ViTs take 5 GB, and three times that with the state of their optimizer."""

# Averaged weights come first, as they are what their authors evaluate; of a self-distilled pair the teacher is one.
_AVERAGED = ("model_ema", "state_dict_ema")
_NESTS = ("model", "state_dict", "teacher", "student", "module", "encoder", "backbone")
_DEEPEST = 4

_ARGUMENTS = "args"

# What torch's reader raises on damaged or hostile pickles; it does not promise any particular class.
_DAMAGED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)
_REFUSED_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


@dataclass(frozen=True, slots=True)
class FoundState:
    """The tensors of a file.

    Attributes:
        tensors: by name.
        others: names of entries beside them that are no tensors.
        place: keys that lead to them inside the file.
        arguments: of the training, by name, as far as they are numbers, texts or booleans.
    """

    tensors: dict[str, Tensor]
    others: tuple[str, ...]
    place: tuple[str, ...]
    arguments: dict[str, object] = field(default_factory=dict)


def read_weights(path: Path, *, averaged: bool = True) -> FoundState:
    """The tensors of a safetensors file or torch checkpoint, on the CPU.

    Args:
        path: of the file; its ending tells which it is.
        averaged: of a checkpoint that holds both, take the moving average of the weights instead of the weights.

    Raises:
        TeacherInvalid: the file is damaged, too large, holds code, or holds no tensors.
    """
    if not path.is_file():
        raise unreadable("it is no plain file")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise unreadable(f"it has {size:,} bytes, allowed are {MAX_BYTES:,}")
    if path.suffix == SAFETENSORS:
        return FoundState(_read_safetensors(path), (), ())
    document = _read_checkpoint(path)
    nests = (*_AVERAGED, *_NESTS) if averaged else (*_NESTS, *_AVERAGED)
    return replace(_find(document, (), nests), arguments=_arguments(document))


def _arguments(document: object) -> dict[str, object]:
    given = document.get(_ARGUMENTS) if isinstance(document, Mapping) else None
    named = vars(given) if isinstance(given, argparse.Namespace) else given
    if not isinstance(named, Mapping):
        return {}
    return {str(name): value for name, value in named.items() if isinstance(value, str | int | float)}


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, OSError) as error:
        raise unreadable(f"it is no complete safetensors file ({error})") from error


def _read_checkpoint(path: Path) -> object:
    _refuse_bombs(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except _DAMAGED as error:
        if refused := _REFUSED_GLOBAL.search(str(error)):
            raise unreadable(
                f"beside tensors it holds an object of {refused[1]}, which is not built, since such objects can run "
                "code; save the state dict alone, best as safetensors"
            ) from error
        raise unreadable("it is no torch checkpoint, or a damaged one") from error


def _refuse_bombs(path: Path) -> None:
    """Torch stores its records as they are; compressed ones could unfold to any size."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unfolded = sum(record.file_size for record in archive.infolist())
    except _DAMAGED as error:
        raise unreadable("it is a damaged archive") from error
    if unfolded > path.stat().st_size:
        raise unreadable("its records are compressed, which torch's own are not")


def _find(document: object, place: tuple[str, ...], nests: Sequence[str]) -> FoundState:
    """The state dict inside a checkpoint: itself, or under one of the usual keys."""
    if not isinstance(document, Mapping):
        raise unreadable(f"it holds a {type(document).__name__} where a dictionary of tensors is expected")
    tensors = {str(name): value for name, value in document.items() if isinstance(value, Tensor)}
    holds_network = any(name.endswith(PATCH_EMBEDDING) for name in tensors)
    inner = next((name for name in nests if isinstance(document.get(name), Mapping)), None)
    if inner is not None and not holds_network and len(place) < _DEEPEST:
        return _find(document[inner], (*place, inner), nests)
    if not tensors:
        raise unreadable(f"it holds no tensors, only {', '.join(sorted(map(str, document)))[:200] or 'nothing'}")
    return FoundState(tensors, tuple(str(name) for name in document if str(name) not in tensors), place)


def check_values(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that no network can compute with.

    Raises:
        TeacherInvalid: names those that are sparse, not of floating point, NaN or infinite; or they share numbers.
    """
    odd = [name for name, t in tensors.items() if t.layout != torch.strided or not t.is_floating_point()]
    if odd:
        raise TeacherInvalid(f"These tensors are no ordinary floating-point numbers: {', '.join(odd)[:500]}.")
    # A view may repeat one number for ever, and many tensors may share one storage: small files, endless networks.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if needed > sum(storages.values()):
        raise TeacherInvalid(f"The tensors unfold to {needed:,} bytes, the file holds {sum(storages.values()):,}.")
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise TeacherInvalid(f"These tensors hold NaN or infinity: {', '.join(broken)[:500]}.")
