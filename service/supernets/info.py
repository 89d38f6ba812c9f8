"""What a search needs to know of a supernet that it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from service.db.models import Supernet
from service.ids import IdKind, format_id

Json = dict[str, Any]

SLIMMABLE_METHODS = ("scala", "usnet")
"""Methods whose supernets have widths; the space of all others is one of architectures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWidth:
    """A width of a slimmable network that was measured, or that was trained.

    Attributes:
        ratio: share of the whole network's width.
        width: channels of a token.
        head_dim: channels of a head.
        accuracy: on validation images, 0..1; None where nothing was measured.
        interpolated: it is not of the grid, so that training sampled it never or rarely.
        offered: it can be extracted.
    """

    ratio: float
    width: int
    head_dim: int
    accuracy: float | None
    interpolated: bool
    offered: bool

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read an entry of ``info["widths"]``, which may tell more."""
        return cls(**{name: document[name] for name in cls.__slots__})


def widths_of(row: Supernet) -> tuple[ServedWidth, ...]:
    """The widths of a slimmable network, the smallest first; none of other supernets."""
    if row.method not in SLIMMABLE_METHODS:
        return ()
    return tuple(ServedWidth.from_json(width) for width in row.info["widths"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetInfo:
    """The facts of one trained supernet.

    Attributes:
        reference: its public id.
        method: that trained it.
        space: JSON of the space whose members are its slices, or of the slimmable network. Read by who needs it:
            workers, which only fetch files, do without numpy.
        dataset: digest of what it was trained on; None of one that was imported.
        classes: of a slimmable network's head, in order; empty where they are not known, or there is no head.
        spec: parts of the filled spec of the job that trained it.
        files: digests of everything that the search reads (supernet, teacher, projector, ...) by file name.
        outputs: of the stages of these names.
        trained_for: which networks the weights were trained as (``workers.stages.supernet``).
    """

    reference: str
    method: str
    space: Json
    dataset: str | None
    classes: tuple[str, ...] = ()
    spec: Mapping[str, Json]
    files: Mapping[str, str]
    outputs: Mapping[str, Json]
    trained_for: Json

    @classmethod
    def from_row(cls, row: Supernet) -> Self:
        """Read a row, as the stage that trained it has written it."""
        return cls(
            reference=format_id(IdKind.SUPERNET, row.id),
            method=row.method,
            space=row.space,
            dataset=row.info.get("dataset"),
            classes=tuple(row.info.get("classes") or ()),
            spec=row.info["spec"],
            files=row.info["files"],
            outputs=row.info.get("outputs", {}),
            trained_for=row.info.get("trained_for", {}),  # unknown for those of earlier versions
        )
