"""From a released checkpoint of Scala to a slimmable network and its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from models.foreign.recognition import HeadsUnknown, NotRecognised
from models.foreign.slimmable import RecognisedSlimmable, Stated, recognise_slimmable
from models.slimmable import Slimmable, SlimmableError
from models.teacher_weights import convert
from service.errors import ErrorItem, SupernetInvalid, TeacherInvalid, shortened
from workers.teachers.reading import FoundState, check_values, read_weights

_FILE = "/path"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSlimmable:
    """A slimmable network of a file.

    Attributes:
        net: the network, its trained widths and how they are cut.
        state: weights of the whole network under timm's names, float32.
        found_in: keys that led to them inside the file, joined by dots.
        dropped: tensors of the file that are no part of the network.
    """

    net: Slimmable
    state: dict[str, Tensor]
    found_in: str
    dropped: tuple[str, ...]


def read_slimmable(path: Path, stated: Stated | None = None) -> ReadSlimmable:
    """Read a checkpoint of the released training code (``checkpoint.pth``, ``best_checkpoint.pth``).

    The weights are those that the code evaluates, not their moving average.

    Args:
        path: a torch checkpoint, or a safetensors file of its tensors alone.
        stated: what is known beside the file; see :func:`models.foreign.slimmable.recognise_slimmable`.

    Raises:
        SupernetInvalid: the file is damaged or holds code, or is no such checkpoint; pointers ``/path``, ``/smallest``,
            ``/step`` and ``/num_heads``.
    """
    try:
        found = read_weights(path, averaged=False)
        recognised = _recognise(found, stated)
        used = sorted({part.name for entry in recognised.entries.values() for part in entry.parts})
        check_values({name: found.tensors[name] for name in used})
    except TeacherInvalid as error:
        raise _refusal(error.detail, [replace(item, pointer=_FILE) for item in error.errors]) from error
    return ReadSlimmable(
        net=recognised.net,
        state=convert(found.tensors, recognised.entries),
        found_in=".".join(found.place),
        dropped=tuple(recognised.findings.dropped),
    )


def _recognise(found: FoundState, stated: Stated | None) -> RecognisedSlimmable:
    shapes = {name: tuple(tensor.shape) for name, tensor in found.tensors.items()}
    try:
        # Entries that are no tensors have no shape, so they end up among the unexpected ones.
        return recognise_slimmable(shapes | dict.fromkeys(found.others, ()), found.arguments, stated)
    except NotRecognised as error:
        pointer, code = (
            ("/num_heads", "heads_unknown") if isinstance(error, HeadsUnknown) else (_FILE, "not_recognised")
        )
        raise SupernetInvalid(
            str(error), errors=[ErrorItem(pointer, code, str(error))], extra={"keys": error.faults.to_json()}
        ) from error
    except SlimmableError as error:
        items = [
            ErrorItem(at.pointer, "widths_unknown", f"found {shortened(repr(at.found))}, allowed is {at.allowed}")
            for at in error.problems
        ]
        raise _refusal("; ".join(f"{item.pointer}: {item.detail}" for item in items), items) from error


def _refusal(detail: str, items: list[ErrorItem]) -> SupernetInvalid:
    return SupernetInvalid(detail, errors=items or [ErrorItem(_FILE, "unreadable", detail)])
