"""A look at a file of weights before there is a job: what its header tells is refused at once."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from models.foreign.layout import Activation
from models.foreign.recognition import HeadsUnknown, Hints, NotRecognised, recognise
from service.errors import ErrorItem, TeacherInvalid
from service.imports import POINTER, refuse_path
from service.jobs.spec import TeacherSource

SAFETENSORS = ".safetensors"

FORMATS = (SAFETENSORS, ".pth", ".pt", ".bin")
"""Endings of files that can be read; the last three are torch checkpoints, which only a trainer opens."""


def check_file(path: Path, source: TeacherSource) -> None:
    """Refuse a file that cannot become a teacher, as far as that can be told without torch.

    Raises:
        ValidationFailed: the path names no file of a known format.
        TeacherInvalid: names and shapes of the tensors are not those of a usable Vision Transformer.
    """
    assert source.path is not None, "the caller asks about files"
    if not path.is_file():
        refuse_path(source.path, "not_a_file", "the path is a folder; name the file with the weights")
    if path.suffix not in FORMATS:
        refuse_path(source.path, "unsupported_format", f"allowed are files that end in {', '.join(FORMATS)}")
    if path.suffix != SAFETENSORS:
        return
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise unreadable(f"it is no complete safetensors file ({error})") from error
    try:
        recognise(shapes, hints_of(source))
    except NotRecognised as error:
        raise refused(error) from error


def hints_of(source: TeacherSource) -> Hints:
    """What the user states beside the file."""
    activation = Activation(source.activation) if source.activation else None
    return Hints(num_heads=source.num_heads, norm_eps=source.norm_eps, activation=activation)


def refused(error: NotRecognised) -> TeacherInvalid:
    """The public form of a refusal; every key at fault is in ``keys``."""
    pointer, code = (
        ("/source/num_heads", "heads_unknown") if isinstance(error, HeadsUnknown) else (POINTER, "not_recognised")
    )
    return TeacherInvalid(
        str(error), errors=[ErrorItem(pointer, code, str(error))], extra={"keys": error.faults.to_json()}
    )


def unreadable(why: str) -> TeacherInvalid:
    """The public form of a file that nobody can read."""
    detail = f"The file cannot be read: {why}."
    return TeacherInvalid(detail, errors=[ErrorItem(POINTER, "unreadable", detail)])
