"""Under which licence weights may be used, as far as it is known. A note for people, no legal advice."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from models.foreign.transforms import Kind

_NON_COMMERCIAL = "-nc"
_UNKNOWN = "not known: check before commercial use"


@dataclass(frozen=True, slots=True)
class Licence:
    """What is known of the terms.

    Attributes:
        name: an SPDX-like identifier, or what the user said; None when unknown.
        commercial_use: False when the terms exclude it, None when unknown.
        note: for people.
    """

    name: str | None
    commercial_use: bool | None
    note: str

    def to_json(self) -> dict[str, Any]:
        """As part of a teacher's ``info``."""
        return asdict(self)


_OF_KIND = {
    Kind.MAE: ("CC-BY-NC-4.0", "The official MAE weights are CC-BY-NC-4.0"),
    Kind.MAE_ENCODER: ("CC-BY-NC-4.0", "The official MAE weights are CC-BY-NC-4.0"),
    Kind.DINOV2: ("Apache-2.0", "The official DINOv2 weights are Apache-2.0"),
    Kind.DINOV2_HUGGINGFACE: ("Apache-2.0", "The official DINOv2 weights are Apache-2.0"),
    Kind.DEIT_DISTILLED: ("Apache-2.0", "The official DeiT weights are Apache-2.0"),
}


def stated(name: str, by: str) -> Licence:
    """A licence that somebody states: the user, or timm's record of the weights."""
    allowed = False if _NON_COMMERCIAL in name.lower() else None
    note = f"stated by {by}"
    return Licence(name, allowed, f"{note}; not for commercial use" if allowed is False else note)


def of_kind(kind: Kind) -> Licence:
    """The licence of the official weights of this layout, which the file may or may not be."""
    if kind is Kind.MAE_FINETUNED:
        return Licence(None, None, f"{_UNKNOWN}; official fine-tuned MAE files, which look like this, are CC-BY-NC-4.0")
    if kind not in _OF_KIND:
        return Licence(None, None, _UNKNOWN)
    name, sentence = _OF_KIND[kind]
    limits = ", not for commercial use" if _NON_COMMERCIAL in name.lower() else ""
    own = "judged by the layout; weights that were trained elsewhere with the same code have their own terms"
    return Licence(name, not limits, f"{sentence}{limits} ({own})")
